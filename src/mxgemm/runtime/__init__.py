"""What device code of quantizers and backends shares: compilation, loading and the disk cache of
kernels.
"""
