"""What users have today, as variants in the same run: torch's products and other libraries'.

A peer solves a problem of its own where it has no MXFP4 product: `computes` says which, and each is
checked against the exact product of the operands that it really multiplies. One whose library is
missing gives rows that say what to install.
"""

from __future__ import annotations

from mxgemm.bench.peers import ggml, openvino, torch_products, torchao
from mxgemm.bench.peers.base import Peer

PEERS = {
    peer.name: peer for module in (torch_products, torchao, openvino, ggml) for peer in module.PEERS
}
"""Peers by name; a further one is one entry of its module."""

__all__ = ["PEERS", "Peer"]
