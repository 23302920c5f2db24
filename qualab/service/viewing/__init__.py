"""What the web pages show: one function a page makes plain values, worded, of what is stored."""
