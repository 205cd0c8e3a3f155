"""Makes wheels and proves them: a lock becomes wheels in an index. All side effects live here."""
