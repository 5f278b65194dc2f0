// Tiles of gemm_decoded.cu: their sizes, who works on them, their place in shared memory, and the
// ring of stages.
#pragma once
#include "e2m1.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"

#ifndef MX_TOKENS
#define MX_TOKENS 256
#endif
#ifndef MX_STAGES
#define MX_STAGES 5
#endif
#ifndef MX_DEPTH
#define MX_DEPTH 2
#endif
#ifndef MX_PIECES
#define MX_PIECES 2
#endif
#ifndef MX_CLUSTER
#define MX_CLUSTER 1
#endif
#ifndef MX_CANONICAL
#define MX_CANONICAL 0
#endif
#ifndef MX_STEPS_PER_PROMOTION
#define MX_STEPS_PER_PROMOTION 4
#endif
#ifndef MX_PLAIN_DTYPE
#define MX_PLAIN_DTYPE 2  // as in gemm_folded.cu; needs 64 tokens or more
#endif

constexpr int kTokens = MX_TOKENS, kRows = kTileRows;
constexpr int kConsumers = kTokens > 128 ? 2 : 1, kGroupTokens = kTokens / kConsumers;
constexpr int kStages = MX_STAGES;
constexpr int kDepth = MX_DEPTH;  // groups of its own that a decoding lane holds or has asked for
constexpr int kDecodingWarps = 8, kDecodingThreads = kDecodingWarps * kWarp;
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kDecodingThreads;
constexpr int kCluster = MX_CLUSTER;
constexpr int kShare = kPieces / kCluster;            // pieces of a group that this block decodes
constexpr int kWarpPieces = MX_PIECES;                // that a warp decodes at a time, neighbours
constexpr int kGroupWarps = kShare / kWarpPieces;     // that decode a group
constexpr int kTurns = kDecodingWarps / kGroupWarps;  // groups that the warps decode at a time
constexpr int kDecodedBytes = kPieceRows * kTileK;    // of a piece
constexpr int kConsumerRegisters = kConsumers == 2 ? 208 : 232;
constexpr int kDecoderRegisters = kConsumers == 2 ? 48 : 136;
constexpr int kAccumulators = kGroupTokens / 2;
constexpr int kBatchesPerStage = kSteps / MX_STEPS_PER_PROMOTION;
// Stages between drains (H200, 2026-11-30): 4 instead of 8 take 3 % more of m = 512, 1 to 2 % of
// 256 and 1024. Pairs of blocks gain another 0.5 % from 32; a block alone spills with so many.
// Strict promotion makes the loop four times as long, and the instruction cache holds it no more.
constexpr int kUnroll = MX_STEPS_PER_PROMOTION == kSteps ? 8 : 4;
constexpr int kLongUnroll = kCluster > 1 && MX_STEPS_PER_PROMOTION == kSteps ? 32 : kUnroll;
constexpr int kChunk = kTokens < 32 ? kTokens : 32;  // tokens of a pass of the full epilogue
constexpr int kPlainChunk = 64;                      // of the plain one
constexpr int kPowers = kRows + kTokens;
constexpr int kUnits = 2 * kWarpPieces;  // blocks of 32 codes that a decoding lane has of a group
constexpr int kPrefetch = 16;            // groups whose packed tiles are brought to L2 ahead
static_assert(kPieces % kCluster == 0 && kShare % kWarpPieces == 0, "every piece is decoded");
// A decoding warp does not see every lap of a stage, but a parity tells only one lap from the next.
// That suffices, since it has seen the group kStages + kTurns before its own left, and a warp's
// arrivals land in their order, at another block's barriers, too.
static_assert(kTurns <= kStages, "no turn is further ahead than the ring");
static_assert(!MX_PLAIN_DTYPE || kTokens >= 64, "a TMA store takes 64 tokens");

// Shared memory, in bytes from a 1024-byte boundary, which the swizzle of the first three wants.
constexpr int kBoxBytes = kTokens * kTileK, kFoldedBytes = kRows * kTileK;
constexpr int kFoldedOffset = kStages * kBoxBytes;
constexpr int kOutOffset = kFoldedOffset + kStages * kFoldedBytes;
constexpr int kOutBytes = kChunk * kTileRows * 4;  // of one consumer
constexpr int kPowersOffset = kOutOffset + kConsumers * kOutBytes;
constexpr int kTableOffset = kPowersOffset + 2 * 2 * kPowers;
constexpr int kBarriersOffset = kTableOffset + 8 * kFoldTableRows;
constexpr int kBarriers = 2 * kStages + 4;
constexpr int kSharedBytes = kBarriersOffset + 8 * kBarriers;
static_assert(kSharedBytes <= 232448, "Hopper gives a block 227 KiB");
static_assert(kOutBytes >= 4 * (kGroupTokens + kTileRows), "wide stages keep their powers there");

using Walk = PackedWalk<kTokens, kRows, kCluster>;

// A place in the ring of stages, and the parity of the lap.
struct Cursor {
  int stage = 0;
  u32 parity = 0;

  DEVICE Cursor ahead(int steps) const {  // up to a lap
    const int next = stage + steps;
    const bool wraps = next >= kStages;
    return {wraps ? next - kStages : next, parity ^ wraps};
  }
  DEVICE Cursor behind(int steps) const {
    const int before = stage - steps;
    return before >= 0 ? Cursor{before, parity} : Cursor{before + kStages, parity ^ 1};
  }
};

// Which of two buffers, and the parity of its lap, by the number of a tile of this block.
DEVICE int buffer_of(int number) { return number & 1; }
DEVICE u32 parity_of(int number) { return (number >> 1) & 1; }

struct Shared {
  u32 base;

  DEVICE u32 box(int stage) const { return base + stage * kBoxBytes; }
  DEVICE u32 folded(int stage) const { return base + kFoldedOffset + stage * kFoldedBytes; }
  DEVICE u32 out(int consumer) const { return base + kOutOffset + consumer * kOutBytes; }
  DEVICE u32 powers(int buffer) const { return base + kPowersOffset + buffer * 2 * kPowers; }
  DEVICE u32 table() const { return base + kTableOffset; }
  DEVICE u32 full(int stage) const { return base + kBarriersOffset + 8 * stage; }
  DEVICE u32 empty(int stage) const { return full(stage) + 8 * kStages; }
  DEVICE u32 powers_full(int buffer) const { return full(2 * kStages + buffer); }
  DEVICE u32 powers_empty(int buffer) const { return powers_full(buffer) + 16; }
};
