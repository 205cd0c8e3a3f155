"""What is installed in an image or environment: read from its files (`reading`), and judged (`checks`)."""
