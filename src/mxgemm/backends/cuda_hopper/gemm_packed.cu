// D[M,N] = epilogue(A[M,K] @ B[N,K].T), A folded (see fold.cu), B packed in tiles (see pack.cu) and
// decoded in registers.
//
// Operands   a: E4M3 [m, k] (tensor map, boxes of its m rows x 128 k, 128-byte swizzle), powers
//            int16; b: tiles (see packed_gemm.cuh), powers int16, padded to 128 rows.
// Tile walk  persistent, tiles of all rows of A x 64 rows of B.
// Roles      the last warpgroup: a thread of each warp issues copies; kSplit consumer warpgroups
//            take turns along k, a stage each.
// Pipeline   stages of a tile of B | a box of A; full barriers by copy bytes, empty ones by warps.
//            The first tiles of B are asked for before the previous kernel in the stream has
//            finished: into stages when that is the fold of A, else into L2, where its powers go
//            even before (H200, m = 1: 11.8 instead of 12.0 us, 2026-11-30).
// Numbers    B is the 64-row operand of wgmma: 8 codes become 8 E4M3 bytes by 7 instructions and a
//            table row, go in by registers, and D comes out transposed. Promotion and wide rows as
//            in gemm_folded.cu.
// Epilogue   partial sums -> shared memory -> added over kSplit in order, scaled, finished by
//            epilogue.cuh.
// Limits     k % 32 == 0, k > 0, m <= kTokens.
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

#ifndef MX_TOKENS
#define MX_TOKENS 8
#endif
#ifndef MX_SPLIT
#define MX_SPLIT 4
#endif
#ifndef MX_STAGES
#define MX_STAGES 16
#endif
#ifndef MX_STEPS_PER_PROMOTION
#define MX_STEPS_PER_PROMOTION 4
#endif

constexpr int kTokens = MX_TOKENS, kSplit = MX_SPLIT, kStages = MX_STAGES;
constexpr int kConsumerThreads = kSplit * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr int kProducers = 4;
constexpr int kSplitsBarrier = 1;  // named; each consumer has one of its own after it
static_assert(kStages % kProducers == 0, "two producers of one stage would lose count of its laps");
constexpr int kProducerRegisters = kSplit == 4 ? 32 : 40;
constexpr int kConsumerRegisters = kSplit == 2 ? 232 : kSplit == 3 ? 152 : 112;
static_assert(kSplit >= 2 && kSplit <= 4, "registers are shared out for 2 to 4 consumers");
constexpr int kAccumulators = kTokens / 2;
constexpr int kBoxBytes = kTokens * kTileK;

// Shared memory, in bytes from a 1024-byte boundary: boxes of A first, since the swizzle wants that
// boundary.
constexpr int kTilesOffset = kStages * kBoxBytes;
constexpr int kSumsOffset = kTilesOffset + kStages * kTileBytes;
// Groups brought to L2 before the kernel before has finished.
constexpr int kPrefetch = kTokens <= 16 ? 8 : 4;
constexpr int kSumsBytes = kTokens * kTileRows * 4;  // of one consumer
static_assert(kSumsBytes >= 4 * kSteps * (kTokens + kTileRows),
              "wide stages keep their powers there");
constexpr int kPowersOffset = kSumsOffset + kSplit * kSumsBytes;
constexpr int kPowersBytes = 4 * (kTileRows + kTokens);  // of one consumer
constexpr int kTableOffset = kPowersOffset + kSplit * kPowersBytes;
constexpr int kBarriersOffset = kTableOffset + 8 * kFoldTableRows;
constexpr int kSharedBytes = kBarriersOffset + 16 * kStages;
static_assert(kSharedBytes <= 232448, "Hopper gives a block 227 KiB");

// Tiles of all tokens x 64 rows of B, and groups of 128 k, a stage each.
struct Walk {
  int count, groups;

  DEVICE explicit Walk(const PackedGemm& g)
      : count((g.n + kTileRows - 1) / kTileRows), groups((g.k + kTileK - 1) / kTileK) {}
};

// The stage that holds the `count`-th group of this block, and the parity of its laps.
struct Place {
  int stage = 0;
  u32 parity = 0;

  DEVICE Place() {}
  DEVICE explicit Place(u32 count) : stage(count % kStages), parity(count / kStages % 2) {}
};

struct Shared {
  u32 base;

  DEVICE u32 box(int stage) const { return base + stage * kBoxBytes; }
  DEVICE u32 tile(int stage) const { return base + kTilesOffset + stage * kTileBytes; }
  DEVICE u32 sums(int consumer) const { return base + kSumsOffset + consumer * kSumsBytes; }
  DEVICE u32 powers(int consumer) const { return base + kPowersOffset + consumer * kPowersBytes; }
  DEVICE u32 table() const { return base + kTableOffset; }
  DEVICE u32 full(int stage) const { return base + kBarriersOffset + 8 * stage; }
  DEVICE u32 empty(int stage) const { return full(stage) + 8 * kStages; }
};

// One thread of each warp of the last warpgroup; the warps take turns along k, since one thread
// alone is too slow.
struct Producer {
  const PackedGemm& g;
  const TensorMap& a;
  Shared shared;
  Walk walk;
  int warp;

  DEVICE const u8* tiles(int row) const {
    return g.weights + static_cast<long long>(row / kTileRows) * walk.groups * kTileBytes;
  }

  // Starts the copy of a group of some rows' tiles into a stage of the ring.
  DEVICE void load_tile(const u8* rows, int group, int stage) const {
    mbarrier_expect(shared.full(stage), kTileBytes + g.m * kTileK);
    bulk_load(shared.tile(stage), rows + group * kTileBytes, kTileBytes, shared.full(stage));
  }

  DEVICE void load_box(int group, int stage) const {
    tma_load(shared.box(stage), &a, shared.full(stage), group * kTileK, 0);
  }

  // Brings near what this block reads first: its rows' powers, and tiles, unless those are copied
  // early. Before the kernel before has finished too: it is a hint, and L2 stays coherent.
  DEVICE void prefetch(const u8* rows, int early) const {
    if (warp == 0) prefetch_bulk(g.b_powers + blockIdx.x * kTileRows, 2 * kTileRows);
    if (early) return;
    const int bytes = min(kPrefetch, walk.groups) * kTileBytes / kProducers / 16 * 16;
    prefetch_bulk(rows + warp * bytes, bytes);
  }

  DEVICE void run() const {
    if (blockIdx.x >= walk.count) return;
    const u8* rows = tiles(blockIdx.x * kTileRows);
    const int early = min(g.early, min(kStages, walk.groups));
    prefetch(rows, early);
    for (int group = warp; group < early; group += kProducers) load_tile(rows, group, group);
    wait_for_previous_grid();
    for (int group = warp; group < early; group += kProducers) load_box(group, group);
    u32 before = 0;     // groups of earlier tiles
    int first = early;  // groups before are on their way
    for (int tile = blockIdx.x; tile < walk.count; tile += gridDim.x) {
      if (tile != blockIdx.x) rows = tiles(tile * kTileRows);
#pragma unroll 1
      for (int group = (warp - before) % kProducers; group < walk.groups; group += kProducers) {
        if (group < first) continue;
        const Place place(before + group);  // a warp keeps to its own stages
        mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
        load_tile(rows, group, place.stage);
        load_box(group, place.stage);
      }
      before += walk.groups;
      first = 0;
    }
  }
};

struct Consumer {
  const PackedGemm& g;
  Shared shared;
  int split, warp, lane, thread;
  Place filled;  // the stage to be read

  DEVICE Consumer(const PackedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        split(uniform(threadIdx.x / kWarpgroup)),
        warp(threadIdx.x / kWarp % 4),
        lane(threadIdx.x % kWarp),
        thread(threadIdx.x % kWarpgroup) {}

  DEVICE void sync() const { named_barrier(2 + split, kWarpgroup); }
  DEVICE void sync_splits() const { named_barrier(kSplitsBarrier, kConsumerThreads); }

  // Powers of this consumer's rows and of the tokens to shared memory, as int32; returns the
  // largest magnitude.
  DEVICE int fetch_powers(int row) const {
    const u32 target = shared.powers(split);
    int largest = 0;
    for (int i = thread; i < kTileRows + kTokens; i += kWarpgroup) {
      const int token = i - kTileRows;
      const int power = token < 0 ? g.b_powers[row + i] : token < g.m ? g.a_powers[token] : 0;
      store_shared_u32(target + 4 * i, power);
    }
    sync();
    for (int i = lane; i < kTileRows + kTokens; i += kWarp) {
      largest = max(largest, abs(static_cast<int>(load_shared_u32(target + 4 * i))));
    }
    return uniform(__reduce_max_sync(~0u, static_cast<u32>(largest)));
  }

  DEVICE int row_power(int row) const { return load_shared_u32(shared.powers(split) + 4 * row); }
  DEVICE int token_power(int token) const { return row_power(kTileRows + token); }

  // The 64 x 128 fragments of this warpgroup's tile in the stage under the cursor.
  DEVICE void decode(u32 (&fragments)[kSteps][4]) const {
    const u32 tile = shared.tile(filled.stage);
    const u32 piece = tile + warp * kPieceBytes;
    const U32x4 low = load_matrix_x4(piece + lane * 16);
    const U32x4 high = load_matrix_x4(piece + kPieceCodeBytes / 2 + lane * 16);
    const U32x2 offsets = load_shared_u32x2(piece + kPieceCodeBytes + lane / 4 * 8);
    const u32 low_words[kSteps] = {low.x, low.y, low.z, low.w};
    const u32 high_words[kSteps] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const u32 two = step < 2 ? offsets.x : offsets.y, first = 0x4440 + step % 2 * 2;
      const U32x2 low_entry = load_shared_u32x2(shared.table() + permute_bytes(two, 0, first));
      const U32x2 high_entry = load_shared_u32x2(shared.table() + permute_bytes(two, 0, first + 1));
      const U32x2 upper = fold_tile_word(low_words[step], low_entry);
      const U32x2 lower = fold_tile_word(high_words[step], high_entry);
      fragments[step][0] = upper.x;
      fragments[step][1] = lower.x;
      fragments[step][2] = upper.y;
      fragments[step][3] = lower.y;
    }
  }

  // Waits for the `count`-th group of this block.
  DEVICE void wait_full(u32 count) {
    filled = Place(count);
    mbarrier_wait(shared.full(filled.stage), filled.parity);
  }

  DEVICE void release() const {
    if (lane == 0) mbarrier_arrive(shared.empty(filled.stage));
  }

  DEVICE u64 box() const { return wgmma_descriptor(shared.box(filled.stage)); }

  DEVICE static void add(float (&total)[kAccumulators], float (&sum)[kAccumulators]) {
    pin(sum);
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) total[i] += sum[i];
  }

  DEVICE static void start(float (&sum)[kAccumulators], u32 (&fragments)[kSteps][4], u64 b) {
    pin(sum);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) pin(fragments[step]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Wgmma<kTokens>::registers(sum, fragments[step], b + 2 * step, step > 0);
    }
    wgmma_commit();
  }

  // One stage: decode, multiply, promote.
  DEVICE void sum_stage(float (&total)[kAccumulators]) {
    float sum[kAccumulators];
    u32 fragments[kSteps][4];
    decode(fragments);
    if constexpr (MX_STEPS_PER_PROMOTION == kSteps) {
      start(sum, fragments, box());
      wgmma_wait<0>();
      add(total, sum);
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        pin(sum);
        wgmma_fence();
        Wgmma<kTokens>::registers(sum, fragments[step], box() + 2 * step, 0);
        wgmma_commit();
        wgmma_wait<0>();
        add(total, sum);
      }
    }
  }

  // One stage of a tile that holds wide rows: every k-step is scaled block by block. Slow and
  // exact.
  DEVICE void sum_stage_wide(float (&total)[kAccumulators], int row, int group) {
    const u32 tokens = shared.sums(split);  // int32 [steps][tokens], in the idle buffer of the sums
    const u32 rows = tokens + kSteps * kTokens * 4;
    const int blocks = g.k / kStepK;
    sync();
    for (int i = thread; i < kSteps * (kTokens + kTileRows); i += kWarpgroup) {
      const bool is_token = i < kSteps * kTokens;
      const int at = is_token ? i % kTokens : (i - kSteps * kTokens) % kTileRows;
      const int step = is_token ? i / kTokens : (i - kSteps * kTokens) / kTileRows;
      const int block = group * kSteps + step;
      store_shared_u32(tokens + 4 * i,
                       is_token
                           ? block_power(g.a_scales, at, g.m, block, blocks, token_power(at))
                           : block_power(g.b_scales, row + at, g.n, block, blocks, row_power(at)));
    }
    sync();
    float sum[kAccumulators];
    u32 fragments[kSteps][4];
    decode(fragments);
    const u32 upper = rows + (warp * 16 + lane / 4) * 4;
#pragma unroll 1  // registers are few
    for (int step = 0; step < kSteps; ++step) {
      u32 now[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 low = step % 2 ? fragments[1][i] : fragments[0][i];
        const u32 high = step % 2 ? fragments[3][i] : fragments[2][i];
        now[i] = step < 2 ? low : high;
      }
      pin(sum);
      pin(now);
      wgmma_fence();
      Wgmma<kTokens>::registers(sum, now, box() + 2 * step, 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(sum);
      const int p0 = load_shared_u32(upper + step * kTileRows * 4);
      const int p1 = load_shared_u32(upper + step * kTileRows * 4 + 32);
      add_by_powers(total, sum, p0, p1, tokens + (step * kTokens + lane % 4 * 2) * 4);
    }
  }

  // Address of (token, row) of a consumer's sums: 32 bytes move by the token, so that a warp's
  // stores fall into all banks.
  DEVICE u32 place(int consumer, int token, int row) const {
    return shared.sums(consumer) + (token * kTileRows + (row ^ (token / 2 % 4 * 8))) * 4;
  }

  DEVICE void finish(const float (&total)[kAccumulators], int row, int largest) const {
    const int upper = warp * 16 + lane / 4;
    // The other warps may still read the powers that sum_stage_wide left in the same memory.
    if (largest == kWideRow) sync();
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      const int at = i * 2 + lane % 4 * 2;
      store_shared_f32(place(split, at, upper), total[i]);
      store_shared_f32(place(split, at + 1, upper), total[i + 1]);
      store_shared_f32(place(split, at, upper + 8), total[i + 2]);
      store_shared_f32(place(split, at + 1, upper + 8), total[i + 3]);
    }
    // The barrier of all would do. Without the other one before it compute-sanitizer's racecheck
    // (CUDA 13.0) names these stores and the loads behind it, which cannot meet.
    sync();
    sync_splits();
    const bool scaled = largest == kWideRow, easy = largest <= kEasyPower;
    auto product = [&](int at, int pair) {
      F32x2 v = {0.f, 0.f};
#pragma unroll
      for (int i = 0; i < kSplit; ++i) {
        const F32x2 part = load_shared_f32x2(place(i, at, 2 * pair));
        v = {v.x + part.x, v.y + part.y};
      }
      if (scaled) return v;
      const int q = token_power(at);
      const int p0 = row_power(2 * pair), p1 = row_power(2 * pair + 1);
      if (easy) {
        const float s = power_of_two(q);
        return F32x2{v.x * power_of_two(p0) * s, v.y * power_of_two(p1) * s};
      }
      return F32x2{scale_by_power(v.x, p0 + q), scale_by_power(v.y, p1 + q)};
    };
    finish_rows<kTokens, kConsumerThreads>(g.epilogue, product, 0, row, shared.sums(0),
                                           kSplitsBarrier);
    sync_splits();
  }

  DEVICE void run() {
    const Walk walk(g);
    wait_for_previous_grid();
    u32 before = 0;  // groups of earlier tiles
    for (int tile = blockIdx.x; tile < walk.count; tile += gridDim.x) {
      const int row = tile * kTileRows;
      const int largest = fetch_powers(row);
      float total[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] = 0.f;
      if (largest == kWideRow) {
#pragma unroll 1
        for (int group = split; group < walk.groups; group += kSplit) {
          wait_full(before + group);
          sum_stage_wide(total, row, group);
          release();
        }
      } else {
#pragma unroll 1
        for (int group = split; group < walk.groups; group += kSplit) {
          wait_full(before + group);
          sum_stage(total);
          release();
        }
      }
      before += walk.groups;
      finish(total, row, largest);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    gemm_packed(const __grid_constant__ TensorMap a, const __grid_constant__ PackedGemm g) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};

  // Prologue
  let_next_grid_start();
  if (threadIdx.x == kConsumerThreads) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full(stage), 1);
      mbarrier_init(shared.empty(stage), 4);
    }
    mbarrier_init_fence();
  }
  fill_fold_table(reinterpret_cast<U32x2*>(memory + kTableOffset));
  __syncthreads();

  // Steady state, drain and epilogue, by role
  if (threadIdx.x >= kConsumerThreads) {
    give_registers<kProducerRegisters>();
    const int warp = threadIdx.x / kWarp % 4;
    if (threadIdx.x % kWarp == 0) Producer{g, a, shared, Walk(g), warp}.run();
  } else {
    take_registers<kConsumerRegisters>();
    Consumer(g, shared).run();
  }
}
