"""What reads the index: one emitter a consumer."""
