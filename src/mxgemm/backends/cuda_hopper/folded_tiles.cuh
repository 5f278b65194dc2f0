// Tiles of gemm_folded.cu: their sizes, their order, their place in shared memory, and the
// arguments of the kernel.
#pragma once
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "powers.cuh"
#include "ptx.cuh"

#ifndef MX_STEPS_PER_PROMOTION
#define MX_STEPS_PER_PROMOTION 4
#endif
#ifndef MX_CONSUMERS
#define MX_CONSUMERS 2
#endif
#ifndef MX_FITTED
#define MX_FITTED 0  // boxes of the last tiles end with the operands' rows
#endif
#ifndef MX_PLAIN_DTYPE
#define MX_PLAIN_DTYPE \
  2  // Dtype of a D that gets alpha * product and nothing else; 0: the full epilogue
#endif

constexpr int kConsumers = MX_CONSUMERS;
constexpr int kRowsPerConsumer = 64;
constexpr int kTileM = kConsumers * kRowsPerConsumer, kTileN = 128, kTileK = 128;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr bool kTwoSums = kConsumers == 2;  // temporary accumulators: two or one
constexpr int kConsumerRegisters = kTwoSums ? 232 : 160, kProducerRegisters = kTwoSums ? 40 : 32;
constexpr int kOutChunks = MX_PLAIN_DTYPE && !kTwoSums ? 1 : 2;
constexpr int kStages = kTwoSums ? 6 : MX_PLAIN_DTYPE ? 5 : 4;
constexpr int kStepK = 32;  // k of one e4m3 wgmma: one MX block
constexpr int kSteps = kTileK / kStepK;
constexpr int kBatchesPerStage = kSteps / MX_STEPS_PER_PROMOTION;
// Stages between drains of two temporary accumulators. 16 of them leave the instruction cache:
// 103.4 instead of 100.8 us at 4096^3 (H200, 2026-11-30); 4 drain too often: 3 % at 8192^3.
constexpr int kUnroll = MX_STEPS_PER_PROMOTION == 4 ? 8 : 4;
constexpr int kAccumulators = kRowsPerConsumer * kTileN / kWarpgroup;
constexpr bool kGroupsOfRows = kTwoSums;     // tiles walked together lie in a few rows or columns
constexpr int kGroup = kTwoSums ? 16 : 8;    // how many
constexpr int kScaleOfOne = 127 + kFoldTop;  // scale byte of a block whose bytes are its values

// Shared memory, in bytes from a 1024-byte boundary.
constexpr int kBytesA = kTileM * kTileK, kBytesB = kTileN * kTileK, kStageBytes = kBytesA + kBytesB;
constexpr int kRowsPerWarp = kRowsPerConsumer / 4;
constexpr int kChunkBytes = kRowsPerWarp * 128;  // 64 columns of a warp's rows in 16 bits
constexpr int kOutOffset = kStages * kStageBytes;
constexpr int kOutBytes = 4 * kOutChunks * kChunkBytes;  // a consumer
constexpr int kPowersOffset = kOutOffset + kConsumers * kOutBytes;
constexpr int kPowersPerTile = kRowsPerConsumer + kTileN;
constexpr int kPowersBytes = 2 * kPowersPerTile;  // int16; two buffers a consumer
constexpr int kFactorsPerStep =
    kTileN + kRowsPerConsumer;  // of a tile with wide rows, 32 bits each
static_assert(2 * kSteps * kFactorsPerStep * 4 <= kOutBytes, "two stages' factors, written there");
constexpr int kBarriersOffset = kPowersOffset + kConsumers * 2 * kPowersBytes;
constexpr int kSharedBytes = kBarriersOffset + 2 * kStages * 8 + 16;
static_assert(kSharedBytes <= 232448, "Hopper gives a block 227 KiB");

// Mirrored by launch.py, field by field.
struct FoldedGemm {
  Epilogue epilogue;
  const i16* a_powers;
  const i16* b_powers;
  const u8* a_scales;  // E8M0 [m, k / 32], read for wide rows
  const u8* b_scales;
  long long a_scales_pitch, b_scales_pitch;
  int* tickets;  // [grid] zeros, or null: tiles by block number
  int m, n, k;
};

// The tiles of this block, one after the other.
struct TileWalk {
  int across, along;      // tiles in the direction that groups divide, and in the other
  int first = 0, inside;  // the group's first line of tiles, tile in the group

  DEVICE TileWalk(const FoldedGemm& g, int first_tile) : inside(first_tile) {
    const int rows = (g.m + kTileM - 1) / kTileM, columns = (g.n + kTileN - 1) / kTileN;
    across = kGroupsOfRows ? rows : columns;
    along = kGroupsOfRows ? columns : rows;
    settle();
  }

  DEVICE bool done() const { return first >= across; }
  DEVICE int height() const { return min(kGroup, across - first); }
  DEVICE void next() {
    inside += gridDim.x;
    settle();
  }
  DEVICE void settle() {
    while (!done() && inside >= height() * along) {
      inside -= height() * along;
      first += kGroup;
    }
  }
  // Only the last group has another height than the power of two, which takes no division.
  DEVICE int line() const {
    return first + (height() == kGroup ? inside % kGroup : inside % height());
  }
  DEVICE int position() const { return height() == kGroup ? inside / kGroup : inside / height(); }
  DEVICE int m() const { return (kGroupsOfRows ? line() : position()) * kTileM; }
  DEVICE int n() const { return (kGroupsOfRows ? position() : line()) * kTileN; }
};

// A position in the ring of stages.
struct Cursor {
  int stage = 0;
  u32 parity = 0;

  DEVICE void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Shared {
  u32 base;

  DEVICE u32 a(int stage) const { return base + stage * kStageBytes; }
  DEVICE u32 b(int stage) const { return a(stage) + kBytesA; }
  DEVICE u32 out(int consumer) const { return base + kOutOffset + consumer * kOutBytes; }
  DEVICE u32 powers(int consumer, int buffer) const {
    return base + kPowersOffset + (2 * consumer + buffer) * kPowersBytes;
  }
  DEVICE u32 full(int stage) const { return base + kBarriersOffset + 8 * stage; }
  DEVICE u32 empty(int stage) const { return full(stage) + 8 * kStages; }
  DEVICE u32 first_tile() const { return base + kBarriersOffset + 16 * kStages; }
};

// The first tile of this block: its multiprocessor's number, so that neighbours share operands in
// L2 also when blocks start in any order. Each number is given out once: a taken one (two blocks on
// a multiprocessor, a partitioned GPU) moves on.
// The fold has cleared the tickets before it let this grid start.
DEVICE int take_ticket(int* tickets) {
  if (!tickets) return blockIdx.x;
  int slot = multiprocessor() % gridDim.x;
  while (atomicExch(tickets + slot, 1)) slot = slot + 1 == gridDim.x ? 0 : slot + 1;
  return slot;
}
