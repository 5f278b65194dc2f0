"""Measure backends against each other and against what users have today, compare runs, and draw.

One idea a module: `shapes` and `cases` say what is measured, `distributions` and `operands` on
what data, `variants`, `quantizers` and `peers` by whom, `error_bound` when a result is right,
`timing` how it is timed, `roofs` and `environment` what the machine can do and is, `runner` in
which order, `results` how rows are kept, `spread` what a difference means, `compare`, `figures` and
`report` what becomes of rows.

`command`, `compare`, `figures` and `report` are command modules: each has `add_arguments(parser)`
and `run(args) -> int`. Nothing outside this package imports it but the command line.
"""
