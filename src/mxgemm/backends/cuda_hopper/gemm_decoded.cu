// D[M,N] = epilogue(A[M,K] @ B[N,K].T), A folded (see fold.cu), B packed in tiles (see
// packed_gemm.cuh) or canonical (MX_CANONICAL), folded in shared memory by warpgroups of its own.
//
// Operands   a: E4M3 [m, k] (boxes of up to kTokens rows x 128 k, 128-byte swizzle), powers int16;
//            b: tiles and int16 powers padded to 128 rows, or canonical codes and E8M0 scales.
// Tile walk  persistent, tiles of kTokens rows of A x 64 of B; see PackedWalk.
// Cluster    MX_CLUSTER blocks with the same 64 rows of B and other tokens: each decodes its share
//            of a group of 128 k, and sends it to the others.
// Roles      one or two consumer warpgroups, up to 128 tokens each; behind them eight decoding
//            warps, each with one or two pieces of 16 rows; as many of them as decode a group take
//            turns with the others.
// Pipeline   a decoding lane holds or has asked for the codes of kDepth groups; stages of one box
//            of A | 64 rows of E4M3 are full when the box and the others' pieces have arrived and
//            this block's are decoded, empty when every consumer warp of the cluster is done.
//            Packed tiles are brought to L2 kPrefetch groups ahead, the first of them before the
//            previous kernel in the stream has finished; so are the first codes asked for, when
//            that kernel is the fold of A.
// Powers     the last decoding warp asks for a tile's row powers, two buffers; those of a canonical
//            B they find from its scales.
// Numbers    B is the 64-row operand of wgmma: D comes out transposed. Promotion and wide rows as
//            in gemm_folded.cu.
// Timeline   wait full | 4 wgmma into temporary i | wait for temporary 1-i | release its stage |
//            add it | ...; drained every kLongUnroll or kUnroll stages.
// Epilogue   plain 16-bit D: registers -> transposing stmatrix -> TMA store; else FP32 through
//            shared memory and epilogue.cuh.
// Limits     k % 32 == 0, k > 0; canonical codes 16-byte aligned.
#include "boxes.cuh"
#include "decoded_tiles.cuh"
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"
#include "row_powers.cuh"
#include "wgmma.cuh"

// What a decoding lane holds of a group: kUnits blocks of 32 codes.
struct Blocks {
  U32x4 words[kUnits];
  u32 notes[MX_CANONICAL ? kUnits : kWarpPieces];  // scales, or both table offsets of a piece
};

struct Decoder {
  const PackedGemm& g;
  const RowBoxes& boxes;
  Shared shared;
  Walk walk;
  int number = 0;  // of this block's tile
  int turn, piece, lane;
  int next;                    // group of the tile that this warp decodes next
  Cursor target;               // its stage
  u32 left, right;             // where in a stage the halves of this lane's first block go
  const u8* source = nullptr;  // packed: this warp's pieces of the group it asks for next
  int token = 0, row = 0;      // where the tile starts
  int box_bytes = 0;           // of its rows of A; none in a cluster's block beyond them

  DEVICE Decoder(const PackedGemm& gemm, const RowBoxes& a, Shared s)
      : g(gemm),
        boxes(a),
        shared(s),
        walk(gemm),
        turn(warp() / kGroupWarps),
        piece(warp() % kGroupWarps * kWarpPieces + (kCluster == 1 ? 0 : cluster_rank() * kShare)),
        lane(threadIdx.x % kWarp),
        next(turn),
        target(Cursor{}.ahead(turn)) {
    // Rows of one lane differ by multiples of 8: the swizzle turns all alike.
    left = unit_row(0) * kTileK + ((2 * unit_step() ^ unit_row(0) % 8) << 4);
    right = left ^ 16;
  }

  static DEVICE int thread() { return threadIdx.x - kConsumerThreads; }
  static DEVICE int warp() { return uniform(thread() / kWarp); }

  // The warps that ask for a group's copies.
  DEVICE bool asks() const { return piece % kShare == 0; }

  // Numbers of tiles fit an int: 2^31 of them are terabytes.
  DEVICE const u8* tiles(int group) const {
    return g.weights + static_cast<long long>(row / kTileRows * walk.groups + group) * kTileBytes;
  }

  // Goes to this block's tile `number`; whether there is one.
  DEVICE bool enter() {
    const int tile = blockIdx.x + number * gridDim.x;
    token = walk.token(tile);
    row = walk.row(tile);
    box_bytes = min(max(g.m - token, 0), kTokens) * kTileK;
    source = tiles(next) + piece * kPieceBytes;
    return tile < walk.count;
  }

  // Brings packed tiles near; other tokens share them. Before the kernel before has finished too:
  // it is a hint, and L2 stays coherent. By one lane.
  DEVICE void prefetch(int first, int count) const {
    if (MX_CANONICAL || token || first >= walk.groups) return;
    prefetch_bulk(tiles(first), min(count, walk.groups - first) * kTileBytes);
  }

  // Row of the tile whose block `unit` of this lane is, and which of the group's four blocks.
  DEVICE int unit_row(int unit) const {
    return piece * kPieceRows + unit * 8 + (MX_CANONICAL ? lane / 4 : lane % 8);
  }
  DEVICE int unit_step() const { return MX_CANONICAL ? lane % 4 : lane / 8; }

  // Asks for the blocks of a group.
  DEVICE void load(Blocks& blocks, int group) {
    if (group >= walk.groups) return;
    if (MX_CANONICAL) {
      const int per_row = g.k / kStepK, block = group * kSteps + lane % 4;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const long long at = static_cast<long long>(row + unit_row(unit)) * per_row + block;
        blocks.words[unit] = {0, 0, 0, 0};
        blocks.notes[unit] = 0;
        if (row + unit_row(unit) < g.n && block < per_row) {
          blocks.words[unit] = load_once(reinterpret_cast<const U32x4*>(g.weights) + at);
          blocks.notes[unit] = g.b_scales[at];
        }
      }
    } else {
      const u8* notes = source + kPieceCodeBytes + lane % 8 * 8 + lane / 8 * 2;
      const u8* words = source + lane * 16;
#pragma unroll
      for (int i = 0; i < kWarpPieces; ++i) {
        blocks.notes[i] = load_once(reinterpret_cast<const u16*>(notes + i * kPieceBytes));
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int at = i / 2 * kPieceBytes + i % 2 * (kPieceCodeBytes / 2);
        blocks.words[i] = load_once(reinterpret_cast<const U32x4*>(words + at));
      }
      source += kTurns * kTileBytes;
    }
  }

  // Asks for the powers of the tile's rows of B and of A; those of a canonical B it finds.
  DEVICE void publish_powers() const {
    const int buffer = buffer_of(number);
    const u32 powers = shared.powers(buffer), full = shared.powers_full(buffer);
    const bool asks_here = warp() == kDecodingWarps - 1;  // others ask for their first boxes now
    if (MX_CANONICAL || asks_here) {
      mbarrier_wait(shared.powers_empty(buffer), parity_of(number) ^ 1);
    }
    if (asks_here && elected()) {
      constexpr int kRowsBytes = MX_CANONICAL ? 0 : 2 * kRows;
      const int tokens_bytes = 2 * min(max(rows_with_powers(g.m) - token, 0), kTokens);
      mbarrier_expect(full, kRowsBytes + tokens_bytes);
      if (!MX_CANONICAL) bulk_load(powers, g.b_powers + row, kRowsBytes, full);
      if (tokens_bytes) bulk_load(powers + 2 * kRows, g.a_powers + token, tokens_bytes, full);
    }
    if (MX_CANONICAL) {
      constexpr int kMine = kRows / kDecodingWarps;
      const int first = warp() * kMine;
      find_row_powers<kMine>(g.weights, g.b_scales, row + first, g.n, g.k / kStepK,
                             powers + 2 * first);
      mbarrier_arrive(full);
    }
  }

  // Folds this warp's pieces of a group into its stage and asks for the blocks of another in their
  // place.
  DEVICE void decode(Blocks& blocks, u32 powers) {
    const u32 full = shared.full(target.stage), folded = shared.folded(target.stage);
    mbarrier_wait(shared.empty(target.stage), target.parity ^ 1);
    if (asks() && elected()) {  // before all else: a box takes longer than a group
      mbarrier_expect(full, box_bytes + (kCluster - 1) * kShare * kDecodedBytes);
      if (kCluster == 1 || box_bytes) {
        const TensorMap* map = boxes.of(box_bytes == kBoxBytes);
        tma_load(shared.box(target.stage), map, full, next * kTileK, token);
      }
      prefetch(next + kPrefetch, 1);
    }
    U32x2 entries[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const u32 offset =
          MX_CANONICAL ? fold_offset(blocks.notes[i], load_shared_i16(powers + 2 * unit_row(i)))
          : i % 2      ? blocks.notes[i / 2] >> 8
                       : blocks.notes[i / 2] & 255;
      entries[i] = load_shared_u32x2(shared.table() + offset);
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const U32x4& v = blocks.words[i];
      const U32x2 w0 = fold(v.x, entries[i]), w1 = fold(v.y, entries[i]);
      const U32x2 w2 = fold(v.z, entries[i]), w3 = fold(v.w, entries[i]);
      const u32 unit = folded + i * 8 * kTileK;
      store_shared_u32x4(unit + left, MX_CANONICAL ? U32x4{w0.x, w0.y, w1.x, w1.y}
                                                   : U32x4{w0.x, w1.x, w2.x, w3.x});
      store_shared_u32x4(unit + right, MX_CANONICAL ? U32x4{w2.x, w2.y, w3.x, w3.y}
                                                    : U32x4{w0.y, w1.y, w2.y, w3.y});
    }
    async_proxy_fence();
    __syncwarp();
    if (elected()) {
      mbarrier_arrive(full);
      send(folded + piece * kDecodedBytes, full);
    }
    target = target.ahead(kTurns);
    load(blocks, next + kDepth * kTurns);
    next += kTurns;
  }

  // This warp's pieces to the other blocks of the cluster. Theirs, and this stage, are not filled
  // again before it has arrived: all consumers wait for it, and leave this stage, too.
  DEVICE void send(u32 mine, u32 full) const {
#pragma unroll
    for (int i = 1; i < kCluster; ++i) {
      const u32 rank = (piece / kShare + i) % kCluster;
      bulk_send(cluster_address(mine, rank), mine, kWarpPieces * kDecodedBytes,
                cluster_address(full, rank));
    }
  }

  static DEVICE U32x2 fold(u32 word, U32x2 entry) {
    return MX_CANONICAL ? fold_word(word, entry) : fold_tile_word(word, entry);
  }

  DEVICE void run() {
    if (!g.early) wait_for_previous_grid();
#pragma unroll 1
    for (; enter(); ++number) {
      Blocks blocks[kDepth];
#pragma unroll
      for (int i = 0; i < kDepth; ++i) load(blocks[i], next + i * kTurns);
      if (number == 0) {
        wait_for_previous_grid();
      } else if (turn == 0 && asks() && elected()) {
        prefetch(0, kPrefetch);
      }
      publish_powers();
      const u32 powers = shared.powers(buffer_of(number));
      if (MX_CANONICAL) mbarrier_wait(shared.powers_full(buffer_of(number)), parity_of(number));
#pragma unroll 1
      while (next < walk.groups) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          if (next < walk.groups) decode(blocks[i], powers);
        }
      }
      next -= walk.groups;  // they take turns throughout
    }
    if (kCluster > 1) drain();
  }

  // Waits until all stages have been left, by all consumers of the cluster: nothing is on its way
  // to or from this block's shared memory then.
  DEVICE void drain() const {
    Cursor last = target.behind(next);
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      mbarrier_wait(shared.empty(last.stage), last.parity ^ 1);
      last = last.ahead(1);
    }
  }
};

struct Consumer {
  const PackedGemm& g;
  Shared shared;
  int index, warp, lane, thread;
  Cursor filled;
  u32 powers = 0;  // of the tile at hand
  u32 other;       // from this block's shared memory to that of the cluster's block `lane`

  DEVICE Consumer(const PackedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        index(uniform(threadIdx.x / kWarpgroup)),
        warp(uniform(threadIdx.x / kWarp % 4)),
        lane(threadIdx.x % kWarp),
        thread(threadIdx.x % kWarpgroup),
        other(kCluster == 1 ? 0 : cluster_address(s.base, lane % kCluster) - s.base) {}

  DEVICE void sync() const { named_barrier(1 + index, kWarpgroup); }

  DEVICE u32 token_powers() const { return powers + 2 * (kRows + index * kGroupTokens); }
  DEVICE int row_power(int row) const { return load_shared_i16(powers + 2 * row); }
  DEVICE int token_power(int token) const { return load_shared_i16(token_powers() + 2 * token); }

  // Of this consumer's part of the tile, as far as there are tokens; kWideRow is larger than any.
  DEVICE int largest_power(int tokens) const {
    const ColumnPowers rows = load_column_powers_i16(powers + 4 * lane);
    int largest = max(abs(rows.x), abs(rows.y));
#pragma unroll
    for (int first = 0; first < kGroupTokens; first += 2 * kWarp) {
      const int token = first + 2 * lane;
      if (token < min(tokens, kGroupTokens)) {
        const ColumnPowers both = load_column_powers_i16(token_powers() + 2 * token);
        largest = max(largest, max(abs(both.x), token + 1 < tokens ? abs(both.y) : 0));
      }
    }
    return __reduce_max_sync(~0u, static_cast<u32>(largest));
  }

  DEVICE void wait_full(const Cursor& at) const { mbarrier_wait(shared.full(at.stage), at.parity); }
  DEVICE void release(int stage) const {
    if (kCluster == 1) {
      if (lane == 0) mbarrier_arrive(shared.empty(stage));
    } else {
      mbarrier_arrive_cluster(shared.empty(stage) + other, lane < kCluster);
    }
  }

  // Descriptors, so many 16 bytes from `first`, which only their low halves depend on. Addresses
  // end before 2^18: sums stay in their field.
  static DEVICE u64 descriptor(u32 first, u32 pieces) {
    const u64 d = wgmma_descriptor(first);
    return d >> 32 << 32 | (static_cast<u32>(d) + pieces);
  }
  DEVICE u64 rows(int stage) const {
    return descriptor(shared.folded(0), stage * (kFoldedBytes / 16));
  }
  DEVICE u64 box(int stage) const {
    return descriptor(shared.box(0) + index * kGroupTokens * kTileK, stage * (kBoxBytes / 16));
  }

  // Starts k-steps [first, first + count) of a stage.
  DEVICE void start(float (&sum)[kAccumulators], int stage, int first, int count) const {
    const u64 a = rows(stage), b = box(stage);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= first && step < first + count) {
        Wgmma<kGroupTokens>::shared(sum, a + 2 * step, b + 2 * step, step > first);
      }
    }
    wgmma_commit();
  }

  // Sums kBlocks stages into `total`; nothing is in flight before or after.
  template <int kBlocks>
  DEVICE void sum_stages(float (&total)[kAccumulators], float (&even)[kAccumulators],
                         float (&odd)[kAccumulators]) {
    constexpr int kBatches = kBlocks * kBatchesPerStage;
    Cursor stages[kBlocks];
    stages[0] = filled;
#pragma unroll
    for (int i = 1; i < kBlocks; ++i) stages[i] = stages[i - 1].ahead(1);
    auto begin = [&](float (&sum)[kAccumulators], int batch) {
      const Cursor& at = stages[batch / kBatchesPerStage];
      const int part = batch % kBatchesPerStage;
      if (part == 0) wait_full(at);
      start(sum, at.stage, part * MX_STEPS_PER_PROMOTION, MX_STEPS_PER_PROMOTION);
    };
    auto finish = [&](float (&sum)[kAccumulators], int batch) {
      const int part = batch % kBatchesPerStage;
      if (part == kBatchesPerStage - 1) release(stages[batch / kBatchesPerStage].stage);
      pin(sum);
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] += sum[i];
    };
    begin(even, 0);
#pragma unroll
    for (int batch = 1; batch < kBatches; ++batch) {
      if (batch % 2) {
        begin(odd, batch);
        wgmma_wait<1>();
        finish(even, batch - 1);
      } else {
        begin(even, batch);
        wgmma_wait<1>();
        finish(odd, batch - 1);
      }
    }
    wgmma_wait<0>();
    if (kBatches % 2) {
      finish(even, kBatches - 1);
    } else {
      finish(odd, kBatches - 1);
    }
    filled = stages[kBlocks - 1].ahead(1);
  }

  // One stage of a tile that holds wide rows: every k-step is scaled block by block. Slow and
  // exact.
  DEVICE void sum_stage_wide(float (&total)[kAccumulators], float (&sum)[kAccumulators], int token,
                             int row, int group) {
    const u32 scratch = shared.out(index);  // int32 [tokens + rows], in the idle output buffer
    const int blocks = g.k / kStepK, upper = kGroupTokens + warp * 16 + lane / 4;
    const int stage = filled.stage;
    wait_full(filled);
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      const int block = group * kSteps + step;
      sync();
      for (int i = thread; i < kGroupTokens + kTileRows; i += kWarpgroup) {
        const int at = i - kGroupTokens;
        store_shared_u32(
            scratch + 4 * i,
            at < 0 ? block_power(g.a_scales, token + i, g.m, block, blocks, token_power(i))
                   : block_power(g.b_scales, row + at, g.n, block, blocks, row_power(at)));
      }
      sync();
      pin(sum);
      wgmma_fence();
      Wgmma<kGroupTokens>::shared(sum, rows(stage) + 2 * step, box(stage) + 2 * step, 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(sum);
      const int p0 = load_shared_u32(scratch + 4 * upper);
      const int p1 = load_shared_u32(scratch + 4 * (upper + 8));
      add_by_powers(total, sum, p0, p1, scratch + 8 * (lane % 4));
    }
    release(stage);
    filled = filled.ahead(1);
  }

  DEVICE void scale(float (&total)[kAccumulators], bool easy) const {
    const int upper = warp * 16 + lane / 4;
    const u32 tokens = token_powers() + lane % 4 * 4;
    auto of_tokens = [&](int i) { return load_column_powers_i16(tokens + 4 * i); };
    scale_by_powers(total, row_power(upper), row_power(upper + 8), of_tokens, easy);
  }

  // 16-bit D = alpha * total: 64 tokens x 64 rows at a time through this warpgroup's buffer, turned
  // around by stmatrix; TMA clips what lies outside.
  DEVICE void store_plain(const float (&total)[kAccumulators], const TensorMap* map, int token,
                          int row) const {
#pragma unroll
    for (int chunk = 0; chunk < kGroupTokens / kPlainChunk; ++chunk) {
      const u32 buffer = shared.out(index);
      if (thread == 0) bulk_wait_read<0>();
      sync();
#pragma unroll
      for (int j = 0; j < kPlainChunk / 8; j += 2) {
        u32 words[4];
        pack_columns<MX_PLAIN_DTYPE>(total, chunk * (kPlainChunk / 8) + j, words);
        const u32 at = (j + lane / 16) * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2;
        store_matrix_x4_transposed(buffer + at * 128 + ((piece ^ (lane % 8)) << 4), words);
      }
      async_proxy_fence();
      sync();
      if (thread == 0) {
        tma_store(map, buffer, row, token + chunk * kPlainChunk);
        bulk_commit();
      }
    }
  }

  // Offset of (token, row) of the sums: 32 bytes move by the token, so that a warp's stores fall
  // into all banks.
  static DEVICE u32 place(int token, int row) {
    return (token * kTileRows + (row ^ (token / 2 % 4 * 8))) * 4;
  }

  // Everything else: kChunk tokens in FP32 through this warpgroup's buffer.
  DEVICE void store_full(const float (&total)[kAccumulators], int token, int row) const {
    const u32 buffer = shared.out(index);
    const int upper = warp * 16 + lane / 4;
#pragma unroll
    for (int chunk = 0; chunk < kGroupTokens / kChunk; ++chunk) {
      sync();
#pragma unroll
      for (int i = 0; i < kChunk / 2; i += 4) {
        const float* v = &total[chunk * (kChunk / 2) + i];
        const int at = i * 2 + lane % 4 * 2;
        store_shared_f32(buffer + place(at, upper), v[0]);
        store_shared_f32(buffer + place(at + 1, upper), v[1]);
        store_shared_f32(buffer + place(at, upper + 8), v[2]);
        store_shared_f32(buffer + place(at + 1, upper + 8), v[3]);
      }
      sync();
      auto product = [&](int at, int pair) {
        return load_shared_f32x2(buffer + place(at, 2 * pair));
      };
      finish_rows<kChunk, kWarpgroup>(g.epilogue, product, token + chunk * kChunk, row, buffer,
                                      1 + index);
    }
    sync();
  }

  DEVICE void run(const TensorMap& d) {
    const Walk walk(g);
#pragma unroll 1
    for (int number = 0;; ++number) {
      const int tile = blockIdx.x + number * gridDim.x, buffer = buffer_of(number);
      if (tile >= walk.count) break;
      const int token = walk.token(tile) + index * kGroupTokens, row = walk.row(tile);
      powers = shared.powers(buffer);
      mbarrier_wait(shared.powers_full(buffer), parity_of(number));
      float total[kAccumulators], even[kAccumulators], odd[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] = 0.f;
      const int largest = largest_power(g.m - token);
      if (largest == kWideRow) {
        if (thread == 0) bulk_wait_read<0>();
#pragma unroll 1
        for (int group = 0; group < walk.groups; ++group) {
          sum_stage_wide(total, even, token, row, group);
        }
      } else {
        int left = walk.groups;
        if constexpr (kLongUnroll > kUnroll) {
#pragma unroll 1
          for (; left >= kLongUnroll; left -= kLongUnroll) {
            sum_stages<kLongUnroll>(total, even, odd);
          }
        }
#pragma unroll 1
        for (; left >= kUnroll; left -= kUnroll) sum_stages<kUnroll>(total, even, odd);
#pragma unroll 1
        for (; left > 0; --left) sum_stages<1>(total, even, odd);
        lane = renewed(lane);  // what depends on it was not kept through the sums
        scale(total, largest <= kEasyPower);
      }
      mbarrier_arrive(shared.powers_empty(buffer));
      if (MX_PLAIN_DTYPE) {
        if (g.epilogue.alpha != 1.f) {
#pragma unroll
          for (int i = 0; i < kAccumulators; ++i) total[i] *= g.epilogue.alpha;
        }
        store_plain(total, &d, token, row);
      } else {
        store_full(total, token, row);
      }
    }
    if (MX_PLAIN_DTYPE && thread == 0) bulk_wait_read<0>();
  }
};

#if MX_CLUSTER > 1
#define CLUSTER __cluster_dims__(MX_CLUSTER, 1, 1)
#else
#define CLUSTER
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(kThreads, 1)
    gemm_decoded(const __grid_constant__ RowBoxes a, const __grid_constant__ TensorMap d,
                 const __grid_constant__ PackedGemm g) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};
  const bool decodes = uniform(threadIdx.x / kWarpgroup) >= kConsumers;

  // Prologue
  let_next_grid_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared.full(i), 1 + kGroupWarps);
      mbarrier_init(shared.empty(i), 4 * kConsumers * kCluster);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.powers_full(i), MX_CANONICAL ? 1 + kDecodingThreads : 1);
      mbarrier_init(shared.powers_empty(i), kConsumerThreads);
    }
    mbarrier_init_fence();
  }
  __syncwarp();
  if (kCluster > 1) cluster_arrive_relaxed();
  Decoder decoder(g, a, shared);
  if (decodes && decoder.enter() && decoder.turn == 0 && decoder.asks() && elected()) {
    a.prefetch();
    if (MX_PLAIN_DTYPE) prefetch_map(&d);
    decoder.prefetch(0, kPrefetch);
  }
  fill_fold_table(reinterpret_cast<U32x2*>(memory + kTableOffset));
  __syncthreads();
  if (kCluster > 1) cluster_wait();

  // Steady state, drain and epilogue, by role
  if (decodes) {
    give_registers<kDecoderRegisters>();
    decoder.run();
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_grid();
    Consumer(g, shared).run(d);
  }
}
