"""Codecs and rounding on torch tensors: what a number becomes, never how a matrix of them is laid
out.
"""
