"""The proxy: the same policy in the query path. Its mind; its hands are relay/*.c."""
