"""The main job on real input: a sentence encoder with every linear layer as an MXFP4 GEMM.

`study.run` does it and returns figures as data; `figure.save` draws them. Needs the extra `demo`.
"""
