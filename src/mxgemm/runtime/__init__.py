"""What device code of quantizers and backends shares: loading extensions, compiling, caching."""
