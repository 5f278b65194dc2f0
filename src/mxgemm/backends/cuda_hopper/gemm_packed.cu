// D[M,N] = epilogue(A[M,K] @ B[N,K].T), up to 64 rows of A, B packed in tiles (see pack.cu) and
// decoded in registers.
//
// Operands   a: E4M3 [m, k] (tensor map, boxes of kTokens rows x 128 k, 128-byte swizzle) and int16
//            powers; with MX_FOLD_A canonical codes and scales, which are folded into shared memory
//            here. b: tiles (see packed_gemm.cuh), powers int16, padded to 128 rows.
// Tile walk  persistent clusters of two blocks, tiles of kTokens rows of A x 128 rows of B; see
//            PackedWalk. A block multiplies half of k, so that it reads half of A: from L2, 64 rows
//            of all of A for every 64 rows of B would be more bytes than B itself. Then each block
//            finishes 64 of the rows, with the sums that the other has sent.
// Roles      the last warpgroup: a thread of each warp issues copies; kRowGroups * kSplit consumer
//            warpgroups, each 64 rows of B, kSplit of them taking turns along k, a stage each.
// Pipeline   stages of kRowGroups tiles of B | one box of A; full barriers by copy bytes, empty
//            ones by warps. The first tiles of B are asked for before the previous kernel in the
//            stream has finished: into stages when that is the fold of A, else into L2.
// Numbers    B is the 64-row operand of wgmma: 8 codes become 8 E4M3 bytes by 7 instructions and a
//            table row, go in by registers, and D comes out transposed. Promotion and wide rows as
//            in gemm_folded.cu.
// Epilogue   partial sums -> shared memory of the block that finishes -> added in the order of k,
//            scaled, finished by epilogue.cuh.
// Limits     k % 32 == 0, k > 0; with MX_FOLD_A m <= kTokens, and half of A fits shared memory.
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"
#include "row_powers.cuh"
#include "wgmma.cuh"

#ifndef MX_TOKENS
#define MX_TOKENS 8
#endif
#ifndef MX_STAGES
#define MX_STAGES 16
#endif
#ifndef MX_FOLD_A
#define MX_FOLD_A 0
#endif
#ifndef MX_STEPS_PER_PROMOTION
#define MX_STEPS_PER_PROMOTION 4
#endif

constexpr int kTokens = MX_TOKENS, kStages = MX_STAGES;
constexpr int kCluster = 2, kRowGroups = kCluster, kSplit = 2;
constexpr int kConsumers = kSplit * kRowGroups;
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr int kProducers = 4;
static_assert(kStages % kProducers == 0, "two producers of one stage would lose count of its laps");
constexpr int kProducerRegisters = 32, kConsumerRegisters = 112;
constexpr int kAccumulators = kTokens / 2;
constexpr int kBoxBytes = kTokens * kTileK;
constexpr int kStageBox = MX_FOLD_A ? 0 : kBoxBytes;
constexpr int kPrefetch = 4;  // groups brought to L2 before the kernel before has finished

// Shared memory, in bytes from a 1024-byte boundary: boxes of A first, since the swizzle wants that
// boundary; those of a folded A last, since their number is that of groups.
constexpr int kStageTiles = kRowGroups * kTileBytes;
constexpr int kTilesOffset = kStages * kStageBox;
constexpr int kSumsOffset = kTilesOffset + kStages * kStageTiles;
constexpr int kSlots = kCluster * kSplit;            // parts of k that are summed apart
constexpr int kSumsBytes = kTokens * kTileRows * 4;  // of one slot
constexpr int kFactorsOffset = kSumsOffset + kSlots * kSumsBytes;
constexpr int kFactorsBytes = 4 * kSteps * (kTokens + kTileRows);  // of one consumer, of a wide tile
constexpr int kPowersOffset = kFactorsOffset + kConsumers * kFactorsBytes;
constexpr int kPowersBytes = 4 * (kTileRows + kTokens + 2);  // of one consumer: and the largest
constexpr int kTableOffset = kPowersOffset + kConsumers * kPowersBytes;
constexpr int kBarriersOffset = kTableOffset + 8 * kFoldTableRows;
constexpr int kTokenPowersOffset = kBarriersOffset + 16 * kStages + 16;
constexpr int kFoldedOffset = (kTokenPowersOffset + 4 * kTokens + 1023) / 1024 * 1024;
static_assert(kFoldedOffset <= 232448, "Hopper gives a block 227 KiB");

// Tiles of all tokens x 128 rows of B, and groups of 128 k.
struct Walk {
  u32 count;
  int groups;

  DEVICE explicit Walk(const PackedGemm& g)
      : count((g.n + kRowGroups * kTileRows - 1) / (kRowGroups * kTileRows)),
        groups((g.k + kTileK - 1) / kTileK) {}

  DEVICE static int row(int tile) { return tile * kRowGroups * kTileRows; }
};

// The groups of k that a block of the cluster multiplies.
struct Part {
  int first, count;

  DEVICE explicit Part(int groups) {
    const int each = (groups + kCluster - 1) / kCluster;
    first = cluster_rank() * each;
    count = max(0, min(each, groups - first));
  }
};

// Where the ring holds the group that is the `count`-th of this block.
struct Place {
  int stage = 0;
  u32 parity = 0;

  DEVICE Place() {}
  DEVICE explicit Place(u32 count) : stage(count % kStages), parity(count / kStages % 2) {}
};

struct Shared {
  u32 base;

  DEVICE u32 box(int stage) const { return base + stage * kBoxBytes; }
  DEVICE u32 folded(int group) const { return base + kFoldedOffset + group * kBoxBytes; }
  DEVICE u32 tile(int stage, int row_group) const {
    return base + kTilesOffset + stage * kStageTiles + row_group * kTileBytes;
  }
  DEVICE u32 sums(int slot) const { return base + kSumsOffset + slot * kSumsBytes; }
  DEVICE u32 factors(int consumer) const { return base + kFactorsOffset + consumer * kFactorsBytes; }
  DEVICE u32 powers(int consumer) const { return base + kPowersOffset + consumer * kPowersBytes; }
  DEVICE u32 largest(int consumer) const { return powers(consumer) + 4 * (kTileRows + kTokens); }
  DEVICE u32 table() const { return base + kTableOffset; }
  DEVICE u32 full(int stage) const { return base + kBarriersOffset + 8 * stage; }
  DEVICE u32 empty(int stage) const { return full(stage) + 8 * kStages; }
  DEVICE u32 sums_full() const { return full(2 * kStages); }      // the other block's have come
  DEVICE u32 sums_free() const { return full(2 * kStages + 1); }  // the other block's may be sent
  DEVICE u32 token_powers() const { return base + kTokenPowersOffset; }
};

// One thread of each warp of the last warpgroup; the warps take turns along k, since one thread
// alone is too slow.
struct Producer {
  const PackedGemm& g;
  const TensorMap& a;
  Shared shared;
  Walk walk;
  Part part;
  int warp;

  DEVICE const u8* tiles(int row) const {
    return g.weights +
           (static_cast<long long>(row / kTileRows) * walk.groups + part.first) * kTileBytes;
  }

  // Starts the copies of B's tiles of a group into a stage of the ring; `rows` are the tiles of the
  // block's first 64 rows.
  DEVICE void load_tiles(const u8* rows, int group, int stage) const {
    mbarrier_expect(shared.full(stage), kStageTiles + kStageBox);
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      bulk_load(shared.tile(stage, i),
                rows + (static_cast<long long>(i) * walk.groups + group) * kTileBytes, kTileBytes,
                shared.full(stage));
    }
  }

  DEVICE void load_box(int group, int stage) const {
    if (MX_FOLD_A) return;
    tma_load(shared.box(stage), &a, shared.full(stage), (part.first + group) * kTileK, 0);
  }

  // Brings the first tiles near. Before the kernel before has finished too: it is a hint, and L2
  // stays coherent.
  DEVICE void prefetch(const u8* rows) const {
    const int bytes = min(kPrefetch, part.count) * kTileBytes / kProducers;
    if (bytes == 0) return;
    for (int i = 0; i < kRowGroups; ++i) {
      prefetch_bulk(rows + static_cast<long long>(i) * walk.groups * kTileBytes + warp * bytes,
                    bytes);
    }
  }

  DEVICE void run() const {
    const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
    const u8* rows = tiles(walk.row(cluster));
    const int early = min(g.early, min(kStages, part.count));
    if (early == 0) prefetch(rows);
    for (int group = warp; group < early; group += kProducers) load_tiles(rows, group, group);
    wait_for_previous_grid();
    for (int group = warp; group < early; group += kProducers) load_box(group, group);
    u32 before = 0;     // groups of earlier tiles
    int first = early;  // groups before are on their way
    for (int tile = cluster; tile < walk.count; tile += clusters) {
      if (tile != cluster) rows = tiles(walk.row(tile));
#pragma unroll 1
      for (int group = (warp - before) % kProducers; group < part.count; group += kProducers) {
        if (group < first) continue;
        const Place place(before + group);  // a warp keeps to its own stages
        mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
        load_tiles(rows, group, place.stage);
        load_box(group, place.stage);
      }
      before += part.count;
      first = 0;
    }
  }
};

// Codes and scale of a block of A.
struct Block {
  U32x4 codes;
  u32 scale;
};

struct Consumer {
  const PackedGemm& g;
  Shared shared;
  Part part;
  int index, warp, lane, thread;
  Place filled;  // the stage to be read

  DEVICE Consumer(const PackedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        part(Walk(gemm).groups),
        index(uniform(threadIdx.x / kWarpgroup)),
        warp(threadIdx.x / kWarp % 4),
        lane(threadIdx.x % kWarp),
        thread(threadIdx.x % kWarpgroup) {}

  DEVICE int split() const { return index % kSplit; }
  DEVICE int row_group() const { return index / kSplit; }
  DEVICE void sync() const { named_barrier(2 + index, kWarpgroup); }
  DEVICE void sync_all() const { named_barrier(1, kConsumerThreads); }

  // The i-th block of this block's half of A, of which a row has `row_blocks`; zeros past k.
  DEVICE Block load_block(int i, int row_blocks) const {
    const int row = i / row_blocks, block = part.first * kSteps + i % row_blocks;
    const int blocks = g.k / kStepK;
    if (block >= blocks) return {};
    const long long at = static_cast<long long>(row) * blocks + block;
    return {reinterpret_cast<const U32x4*>(g.a_codes)[at], g.a_scales[at]};
  }

  DEVICE void fold_block(const Block& block, int i, int row_blocks) const {
    const int row = i / row_blocks, step = i % row_blocks % kSteps;
    const int power = load_shared_u32(shared.token_powers() + 4 * row);
    const U32x2 entry = load_shared_u32x2(shared.table() + fold_offset(block.scale, power));
    const U32x2 p = fold_word(block.codes.x, entry), q = fold_word(block.codes.y, entry),
                r = fold_word(block.codes.z, entry), s = fold_word(block.codes.w, entry);
    const u32 line = shared.folded(i % row_blocks / kSteps) + row * kTileK;
    store_shared_u32x4(line + ((2 * step ^ row % 8) << 4), {p.x, p.y, q.x, q.y});
    store_shared_u32x4(line + (((2 * step + 1) ^ row % 8) << 4), {r.x, r.y, s.x, s.y});
  }

  // Folds this block's half of A into shared memory; by all consumers.
  DEVICE void fold_a() const {
    constexpr int kBatch = 4;  // blocks of a thread that are asked for at once
    const int row_blocks = part.count * kSteps, count = g.m * row_blocks, w = threadIdx.x / kWarp;
    Block batch[kBatch];
    auto load = [&](int first) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * kConsumerThreads;
        if (i < count) batch[j] = load_block(i, row_blocks);
      }
    };
    load(threadIdx.x);
    constexpr int kRows = 8;  // of a warp
    if (w < kTokens / kRows) {
      find_row_powers<kRows>(g.a_codes, g.a_scales, kRows * w, g.m, g.k / kStepK,
                             shared.token_powers() + 4 * kRows * w);
    }
    sync_all();
    for (int first = threadIdx.x; first < count; first += kBatch * kConsumerThreads) {
      if (first != threadIdx.x) load(first);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * kConsumerThreads;
        if (i < count) fold_block(batch[j], i, row_blocks);
      }
    }
    async_proxy_fence();
    sync_all();
  }

  // Powers of this consumer's rows and of the tokens to shared memory, as int32; returns the
  // largest magnitude.
  DEVICE int fetch_powers(int row) const {
    const u32 target = shared.powers(index);
    int largest = 0;
    for (int i = thread; i < kTileRows + kTokens; i += kWarpgroup) {
      const int token = i - kTileRows;
      int power = 0;
      if (token < 0) {
        power = g.b_powers[row + i];
      } else if (token < g.m) {
        power = MX_FOLD_A ? load_shared_u32(shared.token_powers() + 4 * token) : g.a_powers[token];
      }
      store_shared_u32(target + 4 * i, power);
    }
    sync();
    for (int i = lane; i < kTileRows + kTokens; i += kWarp) {
      largest = max(largest, abs(static_cast<int>(load_shared_u32(target + 4 * i))));
    }
    largest = __reduce_max_sync(~0u, static_cast<u32>(largest));
    if (thread == 0) store_shared_u32(shared.largest(index), largest);
    return largest;
  }

  // Power of a row of a consumer's tile, or of a token, which follow the rows.
  DEVICE int power(int consumer, int row) const {
    return load_shared_u32(shared.powers(consumer) + 4 * row);
  }

  // The 64 x 128 fragments of this warpgroup's tile in the stage under the cursor.
  DEVICE void decode(u32 (&fragments)[kSteps][4]) const {
    const u32 tile = shared.tile(filled.stage, row_group());
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

  DEVICE void release() {
    if (lane == 0) mbarrier_arrive(shared.empty(filled.stage));
  }

  // A's box of the group under the cursor.
  DEVICE u64 box(int group) const {
    return wgmma_descriptor(MX_FOLD_A ? shared.folded(group) : shared.box(filled.stage));
  }

  DEVICE static void add(float (&total)[kAccumulators], float (&sum)[kAccumulators]) {
    pin(sum);
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) total[i] += sum[i];
  }

  DEVICE static void start(float (&sum)[kAccumulators], const u32 (&fragments)[kSteps][4], u64 b) {
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Wgmma<kTokens>::registers(sum, fragments[step], b + 2 * step, step > 0);
    }
    wgmma_commit();
  }

  // One stage: decode, multiply, promote.
  DEVICE void sum_stage(float (&total)[kAccumulators], int group) {
    float sum[kAccumulators];
    u32 fragments[kSteps][4];
    decode(fragments);
    if constexpr (MX_STEPS_PER_PROMOTION == kSteps) {
      start(sum, fragments, box(group));
      wgmma_wait<0>();
      add(total, sum);
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        pin(sum);
        wgmma_fence();
        Wgmma<kTokens>::registers(sum, fragments[step], box(group) + 2 * step, 0);
        wgmma_commit();
        wgmma_wait<0>();
        add(total, sum);
      }
    }
  }

  // One stage of a tile that holds wide rows: every k-step is scaled block by block. Slow and
  // exact.
  DEVICE void sum_stage_wide(float (&total)[kAccumulators], int row, int group) {
    const u32 tokens = shared.factors(index);  // int32 [steps][tokens]
    const u32 rows = tokens + kSteps * kTokens * 4;
    const int blocks = g.k / kStepK;
    sync();
    for (int i = thread; i < kSteps * (kTokens + kTileRows); i += kWarpgroup) {
      const bool is_token = i < kSteps * kTokens;
      const int at = is_token ? i % kTokens : (i - kSteps * kTokens) % kTileRows;
      const int step = is_token ? i / kTokens : (i - kSteps * kTokens) / kTileRows;
      const int block = (part.first + group) * kSteps + step;
      store_shared_u32(
          tokens + 4 * i,
          is_token ? block_power(g.a_scales, at, g.m, block, blocks, power(index, kTileRows + at))
                   : block_power(g.b_scales, row + at, g.n, block, blocks, power(index, at)));
    }
    sync();
    float sum[kAccumulators];
    u32 fragments[kSteps][4];
    decode(fragments);
    const u32 upper = rows + (warp * 16 + lane / 4) * 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      pin(sum);
      wgmma_fence();
      Wgmma<kTokens>::registers(sum, fragments[step], box(group) + 2 * step, 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(sum);
      const int p0 = load_shared_u32(upper + step * kTileRows * 4);
      const int p1 = load_shared_u32(upper + step * kTileRows * 4 + 32);
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        const U32x2 q = load_shared_u32x2(tokens + (step * kTokens + i * 2 + lane % 4 * 2) * 4);
        const int q0 = static_cast<int>(q.x), q1 = static_cast<int>(q.y);
        total[i] += scale_by_power(sum[i], p0 + q0);
        total[i + 1] += scale_by_power(sum[i + 1], p0 + q1);
        total[i + 2] += scale_by_power(sum[i + 2], p1 + q0);
        total[i + 3] += scale_by_power(sum[i + 3], p1 + q1);
      }
    }
  }

  // Offset of (token, row) in a slot of sums: 32 bytes move by the token, so that a warp's stores
  // fall into all banks.
  DEVICE static u32 place(int token, int row) {
    return (token * kTileRows + (row ^ (token / 2 % 4 * 8))) * 4;
  }

  // Stores this warpgroup's sums in a slot of this block or, with a barrier there, of the other.
  template <bool kHere>
  DEVICE void store_sums(const float (&total)[kAccumulators], u32 slot, u32 barrier) const {
    auto store = [&](int token, int row, float sum) {
      const u32 target = slot + place(token, row);
      if (kHere) {
        store_shared_f32(target, sum);
      } else {
        store_async_f32(target, sum, barrier);
      }
    };
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      const int token = i * 2 + lane % 4 * 2;
      store(token, row, total[i]);
      store(token + 1, row, total[i + 1]);
      store(token, row + 8, total[i + 2]);
      store(token + 1, row + 8, total[i + 3]);
    }
  }

  // Brings this warpgroup's sums to the block that finishes its rows.
  DEVICE void hand_over(const float (&total)[kAccumulators], u32 parity) const {
    const u32 slot = shared.sums(cluster_rank() * kSplit + split());
    if (row_group() == cluster_rank()) {
      store_sums<true>(total, slot, 0);
    } else {
      mbarrier_wait(shared.sums_free(), parity ^ 1);
      store_sums<false>(total, address_in_block(slot, row_group()),
                        address_in_block(shared.sums_full(), row_group()));
    }
  }

  // Finishes 64 rows of B's tile, those of the row group of this block's number.
  DEVICE void finish(int row, u32 parity, bool is_last) const {
    if (threadIdx.x == 0) mbarrier_expect(shared.sums_full(), kSplit * kSumsBytes);
    sync_all();
    mbarrier_wait(shared.sums_full(), parity);
    const int consumer = cluster_rank() * kSplit, largest = load_shared_u32(shared.largest(consumer));
    const bool scaled = largest == kWideRow, easy = largest <= kEasyPower;
    auto product = [&](int at, int pair) {
      F32x2 v = {0.f, 0.f};
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const F32x2 part = load_shared_f32x2(shared.sums(slot) + place(at, 2 * pair));
        v = {v.x + part.x, v.y + part.y};
      }
      if (scaled) return v;
      const int q = power(consumer, kTileRows + at);
      const int p0 = power(consumer, 2 * pair), p1 = power(consumer, 2 * pair + 1);
      if (easy) {
        const float s = power_of_two(q);
        return F32x2{v.x * power_of_two(p0) * s, v.y * power_of_two(p1) * s};
      }
      return F32x2{scale_by_power(v.x, p0 + q), scale_by_power(v.y, p1 + q)};
    };
    // Column sums may take the place of this block's own sums: the other's next ones may come.
    static_assert(kSplit * kSumsBytes >= kConsumerThreads * 8, "room for column sums");
    finish_rows<kTokens, kConsumerThreads>(g.epilogue, product, 0, row + cluster_rank() * kTileRows,
                                           shared.sums(cluster_rank() * kSplit), 1);
    if (is_last) return;
    sync_all();
    if (threadIdx.x == 0) {
      mbarrier_arrive_in_cluster(address_in_block(shared.sums_free(), cluster_rank() ^ 1));
    }
  }

  DEVICE void run() {
    const Walk walk(g);
    const u32 cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
    wait_for_previous_grid();
    if (MX_FOLD_A) fold_a();
    u32 before = 0;  // groups of earlier tiles
    for (u32 tile = cluster; tile < walk.count; tile += clusters) {
      const int row = walk.row(tile);
      const int first_row = row + row_group() * kTileRows;
      const int largest = fetch_powers(first_row);
      float total[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] = 0.f;
      if (largest == kWideRow) {
#pragma unroll 1
        for (int group = split(); group < part.count; group += kSplit) {
          wait_full(before + group);
          sum_stage_wide(total, first_row, group);
          release();
        }
      } else {
#pragma unroll 1
        for (int group = split(); group < part.count; group += kSplit) {
          wait_full(before + group);
          sum_stage(total, group);
          release();
        }
      }
      before += part.count;
      const u32 parity = tile / clusters % 2;  // of the exchanges of sums
      hand_over(total, parity);
      finish(row, parity, tile + clusters >= walk.count);
    }
  }
};

extern "C" __global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    gemm_packed(const __grid_constant__ TensorMap a, const __grid_constant__ PackedGemm g) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};

  // Prologue
  // After a fold it pays to keep the next one out of the way (H200, m = 16: 13.7 instead of 14.3
  // us, 2026-11-30).
  if (g.early == 0) let_next_grid_start();
  if (threadIdx.x == kConsumerThreads) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full(stage), 1);
      mbarrier_init(shared.empty(stage), kRowGroups * 4);
    }
    mbarrier_init(shared.sums_full(), 1);
    mbarrier_init(shared.sums_free(), 1);
    mbarrier_init_fence();
  }
  fill_fold_table(reinterpret_cast<U32x2*>(memory + kTableOffset));
  cluster_barrier();
  __syncthreads();

  // Steady state, drain and epilogue, by role
  if (threadIdx.x >= kConsumerThreads) {
    give_registers<kProducerRegisters>();
    const int warp = threadIdx.x / kWarp % 4;
    const Walk walk(g);
    if (threadIdx.x % kWarp == 0) Producer{g, a, shared, walk, Part(walk.groups), warp}.run();
  } else {
    take_registers<kConsumerRegisters>();
    Consumer(g, shared).run();
  }
}
