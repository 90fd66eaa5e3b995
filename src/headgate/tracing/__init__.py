"""Spans for a collector, by OpenTelemetry: the extra `otel`. Loaded only where [tracing] is set."""
