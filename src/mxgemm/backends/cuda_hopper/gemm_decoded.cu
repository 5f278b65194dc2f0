// D[M,N] = epilogue(A[M,K] @ B[N,K].T), A folded (see fold.cu), B packed in tiles (see
// packed_gemm.cuh) or canonical (MX_CANONICAL), folded in shared memory by warpgroups of its own.
//
// Operands   a: E4M3 [m, k] (tensor map, boxes of kTokens rows x 128 k, 128-byte swizzle), powers
//            int16; b: tiles and int16 powers padded to 128 rows, or canonical codes and E8M0
//            scales.
// Tile walk  persistent, tiles of kTokens rows of A x 64 of B; see PackedWalk.
// Roles      one or two consumer warpgroups, up to 128 tokens each; behind them two decoding
//            warpgroups, which take groups of 128 k in turns.
// Pipeline   a decoding lane holds or has asked for the codes of kDepth groups; stages of one box
//            of A | 64 rows of E4M3 are full when the box has arrived and four decoding warps are
//            done, empty when every consumer warp is. Packed tiles are brought to L2 kPrefetch
//            groups ahead, the first of them before the previous kernel in the stream has finished.
// Powers     the decoding warps bring a tile's row powers to shared memory, two buffers; those of a
//            canonical B they find from its scales.
// Numbers    B is the 64-row operand of wgmma: D comes out transposed. Promotion and wide rows as
//            in gemm_folded.cu.
// Timeline   wait full | 4 wgmma into temporary i | wait for temporary 1-i | release its stage |
//            add it | ...; drained every kUnroll stages: more fill the instruction cache.
// Epilogue   plain 16-bit D: registers -> transposing stmatrix -> TMA store; else FP32 through
//            shared memory and epilogue.cuh.
// Limits     k % 32 == 0, k > 0; canonical codes 16-byte aligned.
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"
#include "row_powers.cuh"
#include "wgmma.cuh"

#ifndef MX_TOKENS
#define MX_TOKENS 256
#endif
#ifndef MX_STAGES
#define MX_STAGES 4
#endif
#ifndef MX_SLOTS
#define MX_SLOTS 10
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
constexpr int kDecoders = 2, kDecodingWarps = 4 * kDecoders;
constexpr int kSlots = MX_CANONICAL ? 0 : MX_SLOTS;  // packed tiles there or on their way
constexpr int kDepth = 3;  // canonical: groups of its own that a decoding lane has asked for
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kDecoders * kWarpgroup;
constexpr int kConsumerRegisters = kConsumers == 2 ? 208 : 232;
constexpr int kDecoderRegisters = kConsumers == 2 ? 48 : 136;
constexpr int kAccumulators = kGroupTokens / 2;
constexpr int kBatchesPerStage = kSteps / MX_STEPS_PER_PROMOTION;
constexpr int kUnroll = 4;  // stages between drains
constexpr int kChunk = kTokens < 32 ? kTokens : 32;  // tokens of a pass of the full epilogue
constexpr int kPlainChunk = 64;                      // of the plain one
constexpr int kPowers = kRows + kTokens;
constexpr int kUnits = 2;  // blocks of 32 codes that a decoding lane has of a group
static_assert(kStages % kUnroll == 0, "a trip through the ring is a number of unrolled loops");
static_assert(kSlots % kDecoders == 0, "a decoding warpgroup keeps to its own slots");
static_assert(!MX_PLAIN_DTYPE || kTokens >= 64, "a TMA store takes 64 tokens");

// Shared memory, in bytes from a 1024-byte boundary, which the swizzle of the first three wants.
constexpr int kBoxBytes = kTokens * kTileK, kFoldedBytes = kRows * kTileK;
constexpr int kFoldedOffset = kStages * kBoxBytes;
constexpr int kOutOffset = kFoldedOffset + kStages * kFoldedBytes;
constexpr int kOutBytes = kChunk * kTileRows * 4;  // of one consumer
constexpr int kSlotsOffset = kOutOffset + kConsumers * kOutBytes;
constexpr int kPowersOffset = kSlotsOffset + kSlots * kTileBytes;
constexpr int kTableOffset = kPowersOffset + 2 * 4 * kPowers;
constexpr int kBarriersOffset = kTableOffset + 8 * kFoldTableRows;
constexpr int kBarriers = 2 * kStages + kSlots + 4;
constexpr int kSharedBytes = kBarriersOffset + 8 * kBarriers;
static_assert(kSharedBytes <= 232448, "Hopper gives a block 227 KiB");
static_assert(kOutBytes >= 4 * (kGroupTokens + kTileRows), "wide stages keep their powers there");

using Walk = PackedWalk<kTokens, kRows>;

template <int kCount>
struct Cursor {
  int at = 0;
  u32 parity = 0;

  DEVICE void advance(int steps = 1) {
    at += steps;
    if (at >= kCount) {
      at -= kCount;
      parity ^= 1;
    }
  }
  DEVICE void retreat(int steps) {
    at -= steps;
    if (at < 0) {
      at += kCount;
      parity ^= 1;
    }
  }
};

// Which of two buffers, and the parity of its lap, by the number of a tile of this block.
DEVICE int buffer_of(int number) { return number & 1; }
DEVICE u32 parity_of(int number) { return (number >> 1) & 1; }

struct Shared {
  u32 base;

  DEVICE u32 box(int stage) const { return base + stage * kBoxBytes; }
  DEVICE u32 folded(int stage) const { return base + kFoldedOffset + stage * kFoldedBytes; }
  DEVICE u32 slot(int at) const { return base + kSlotsOffset + at * kTileBytes; }
  DEVICE u32 out(int consumer) const { return base + kOutOffset + consumer * kOutBytes; }
  DEVICE u32 powers(int buffer) const { return base + kPowersOffset + buffer * 4 * kPowers; }
  DEVICE u32 table() const { return base + kTableOffset; }
  DEVICE u32 full(int stage) const { return base + kBarriersOffset + 8 * stage; }
  DEVICE u32 empty(int stage) const { return full(kStages + stage); }
  DEVICE u32 slot_full(int at) const { return full(2 * kStages + at); }
  DEVICE u32 powers_full(int buffer) const { return full(2 * kStages + kSlots + buffer); }
  DEVICE u32 powers_empty(int buffer) const { return powers_full(2 + buffer); }
};

// What decoders of both kinds of weight share. A warp `piece` of a decoding warpgroup folds 16 rows
// of a group, two blocks of 32 codes a lane; lane 0 of the first asks for the warpgroup's copies.
struct Decoder {
  const PackedGemm& g;
  const TensorMap& tokens;
  Shared shared;
  Walk walk;
  int index, piece, lane;
  Cursor<kStages> stage;
  u32 left, right;  // where in a stage the halves of this lane's first block go

  DEVICE Decoder(const PackedGemm& gemm, const TensorMap& a, Shared s)
      : g(gemm),
        tokens(a),
        shared(s),
        walk(gemm),
        index(uniform((threadIdx.x - kConsumerThreads) / kWarpgroup)),
        piece(uniform(threadIdx.x / kWarp % 4)),
        lane(threadIdx.x % kWarp) {
    stage.advance(index);
    // Rows of one lane differ by multiples of 8: the swizzle turns all alike.
    const u32 chunk = 2 * unit_step(), swap = unit_row(0) % 8;
    left = unit_row(0) * kTileK + ((chunk ^ swap) << 4);
    right = left ^ 16;
  }

  // Row of the tile whose block `unit` of this lane is, and which of the group's four blocks.
  DEVICE int unit_row(int unit) const {
    return piece * kPieceRows + unit * 8 + (MX_CANONICAL ? lane / 4 : lane % 8);
  }
  DEVICE int unit_step() const { return MX_CANONICAL ? lane % 4 : lane / 8; }
  DEVICE bool asks() const { return piece == 0 && lane == 0; }

  // The first group of this warpgroup in the tile of a number: they take turns throughout.
  DEVICE int first_group(int number) const { return (index + number * walk.groups) % kDecoders; }

  DEVICE void wait_empty() const { mbarrier_wait(shared.empty(stage.at), stage.parity ^ 1); }

  DEVICE void ask_box(int token, int group) const {
    mbarrier_expect(shared.full(stage.at), kBoxBytes);
    tma_load(shared.box(stage.at), &tokens, shared.full(stage.at), group * kTileK, token);
  }

  DEVICE void fold(int unit, const U32x4& v, U32x2 entry) const {
    auto word = [&](u32 codes) {
      return MX_CANONICAL ? fold_word(codes, entry) : fold_tile_word(codes, entry);
    };
    const U32x2 w0 = word(v.x), w1 = word(v.y), w2 = word(v.z), w3 = word(v.w);
    const u32 target = shared.folded(stage.at) + unit * 8 * kTileK;
    store_shared_u32x4(target + left, MX_CANONICAL ? U32x4{w0.x, w0.y, w1.x, w1.y}
                                                   : U32x4{w0.x, w1.x, w2.x, w3.x});
    store_shared_u32x4(target + right, MX_CANONICAL ? U32x4{w2.x, w2.y, w3.x, w3.y}
                                                    : U32x4{w0.y, w1.y, w2.y, w3.y});
  }

  DEVICE void publish() {
    async_proxy_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.full(stage.at));
    stage.advance(kDecoders);
  }

  // The powers of a tile's rows of B and of A; kRows + kTokens numbers.
  DEVICE void publish_powers(int number, int token, int row) const {
    const int buffer = buffer_of(number);
    mbarrier_wait(shared.powers_empty(buffer), parity_of(number) ^ 1);
    const u32 target = shared.powers(buffer);
#pragma unroll 1
    for (int i = threadIdx.x - kConsumerThreads; i < kPowers; i += kDecoders * kWarpgroup) {
      if (MX_CANONICAL && i < kRows) continue;
      const int at = token + i - kRows;
      const int power = i < kRows ? g.b_powers[row + i] : at < g.m ? g.a_powers[at] : 0;
      store_shared_u32(target + 4 * i, power);
    }
    if (MX_CANONICAL) {
      constexpr int kShare = kRows / kDecodingWarps;
      const int first = (4 * index + piece) * kShare;
      find_row_powers<kShare>(g.weights, g.b_scales, row + first, g.n, g.k / kStepK,
                              target + 4 * first);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.powers_full(buffer));
  }
};

// Packed tiles come by bulk copies to slots, kSlots groups ahead.
struct PackedDecoder : Decoder {
  static constexpr int kLaps = kSlots / kDecoders;  // groups of its own that are asked for ahead
  Cursor<kSlots> slot;
  const u8* next;           // the packed tile that is asked for next,
  int next_tile, next_group;  // in the row of a tile of D

  DEVICE PackedDecoder(const PackedGemm& gemm, const TensorMap& a, Shared s)
      : Decoder(gemm, a, s), next_tile(blockIdx.x), next_group(index) {
    slot.advance(index);
    find_next();
  }

  DEVICE void find_next() {
    while (next_group >= walk.groups) {
      next_group -= walk.groups;
      next_tile += gridDim.x;
    }
    // Numbers of packed tiles fit an int: 2^31 of them are terabytes.
    const int at = walk.row(next_tile) / kTileRows * walk.groups + next_group;
    next = g.weights + static_cast<long long>(at) * kTileBytes;
  }

  DEVICE void ask_tile(int at) {
    if (next_tile >= walk.count) return;
    mbarrier_expect(shared.slot_full(at), kTileBytes);
    bulk_load(shared.slot(at), next, kTileBytes, shared.slot_full(at));
    next += kDecoders * kTileBytes;
    next_group += kDecoders;
    if (next_group >= walk.groups) find_next();
  }

  DEVICE void ask_first_tiles() {
    if (!asks()) return;
#pragma unroll 1
    for (int i = 0; i < kLaps - 1; ++i) ask_tile(index + i * kDecoders);
  }

  // The box of a group and, since the group before of this warpgroup has left its slot when its
  // stage is full, a packed tile there.
  DEVICE void ask(int token, int group) {
    ask_box(token, group);
    Cursor<kStages> before = stage;
    before.retreat(kDecoders);
    mbarrier_wait(shared.full(before.at), before.parity);
    ask_tile(slot.at >= kDecoders ? slot.at - kDecoders : slot.at + kSlots - kDecoders);
  }

  DEVICE void run() {
    int number = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < walk.count; tile += gridDim.x, ++number) {
      const int token = walk.token(tile);
      publish_powers(number, token, walk.row(tile));
#pragma unroll 1
      for (int group = first_group(number); group < walk.groups; group += kDecoders) {
        const u32 source = shared.slot(slot.at) + piece * kPieceBytes;
        const u32 codes = source + lane * 16;
        const u32 notes = source + kPieceCodeBytes + lane % 8 * 8 + lane / 8 * 2;
        mbarrier_wait(shared.slot_full(slot.at), slot.parity);
        const u32 offsets = load_shared_u16(notes);
        const U32x4 upper = load_shared_u32x4(codes);
        const U32x4 lower = load_shared_u32x4(codes + kPieceCodeBytes / 2);
        const U32x2 first = load_shared_u32x2(shared.table() + (offsets & 255));
        const U32x2 second = load_shared_u32x2(shared.table() + (offsets >> 8));
        wait_empty();
        if (asks()) ask(token, group);
        fold(0, upper, first);
        fold(1, lower, second);
        publish();
        slot.advance(kDecoders);
      }
    }
  }
};

// Canonical rows, straight from memory to registers; their powers come from their scales.
struct CanonicalDecoder : Decoder {
  struct Blocks {
    U32x4 words[kUnits];
    u32 scales[kUnits];
  };
  int token = 0, row = 0;  // where the tile starts

  DEVICE CanonicalDecoder(const PackedGemm& gemm, const TensorMap& a, Shared s)
      : Decoder(gemm, a, s) {}

  // Asks for the blocks of a group.
  DEVICE void load(Blocks& blocks, int group) const {
    if (group >= walk.groups) return;
    const int per_row = g.k / kStepK, block = group * kSteps + lane % 4;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const long long at = static_cast<long long>(row + unit_row(unit)) * per_row + block;
      blocks.words[unit] = {0, 0, 0, 0};
      blocks.scales[unit] = 0;
      if (row + unit_row(unit) < g.n && block < per_row) {
        blocks.words[unit] = load_once(reinterpret_cast<const U32x4*>(g.weights) + at);
        blocks.scales[unit] = g.b_scales[at];
      }
    }
  }

  // Folds one group and asks for the blocks of a later one in their place; after the fence, which
  // would wait for them.
  DEVICE void decode(Blocks& blocks, int group, u32 powers) {
    wait_empty();
    if (asks()) ask_box(token, group);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int power = load_shared_u32(powers + 4 * unit_row(i));
      fold(i, blocks.words[i],
           load_shared_u32x2(shared.table() + fold_offset(blocks.scales[i], power)));
    }
    publish();
    load(blocks, group + kDepth * kDecoders);
  }

  DEVICE void run() {
    int number = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < walk.count; tile += gridDim.x, ++number) {
      token = walk.token(tile);
      row = walk.row(tile);
      publish_powers(number, token, row);
      const int first = first_group(number);
      Blocks blocks[kDepth];
#pragma unroll
      for (int i = 0; i < kDepth; ++i) load(blocks[i], first + i * kDecoders);
      const u32 powers = shared.powers(buffer_of(number));
      mbarrier_wait(shared.powers_full(buffer_of(number)), parity_of(number));
#pragma unroll 1
      for (int group = first; group < walk.groups; group += kDepth * kDecoders) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          const int at = group + i * kDecoders;
          if (at < walk.groups) decode(blocks[i], at, powers);
        }
      }
    }
  }
};

struct Consumer {
  const PackedGemm& g;
  Shared shared;
  int index, warp, lane, thread;
  Cursor<kStages> filled;
  u32 powers = 0;  // of the tile at hand

  DEVICE Consumer(const PackedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        index(uniform(threadIdx.x / kWarpgroup)),
        warp(uniform(threadIdx.x / kWarp % 4)),
        lane(threadIdx.x % kWarp),
        thread(threadIdx.x % kWarpgroup) {}

  DEVICE void sync() const { named_barrier(1 + index, kWarpgroup); }

  DEVICE int row_power(int row) const { return load_shared_u32(powers + 4 * row); }
  DEVICE int token_power(int token) const {
    return load_shared_u32(powers + 4 * (kRows + index * kGroupTokens + token));
  }

  DEVICE int largest_power() const {
    int largest = 0;
    for (int i = lane; i < kTileRows; i += kWarp) largest = max(largest, abs(row_power(i)));
    for (int i = lane; i < kGroupTokens; i += kWarp) {
      largest = max(largest, abs(token_power(i)));
    }
    return __reduce_max_sync(~0u, static_cast<u32>(largest));
  }

  DEVICE void wait_full(int stage) const { mbarrier_wait(shared.full(stage), filled.parity); }
  DEVICE void release(int stage) const {
    if (lane == 0) mbarrier_arrive(shared.empty(stage));
  }

  // Addresses end before 2^18: sums stay in their field.
  DEVICE u64 rows(int stage) const {
    return wgmma_descriptor(shared.folded(0)) + stage * (kFoldedBytes / 16);
  }
  DEVICE u64 box(int stage) const {
    return wgmma_descriptor(shared.box(0) + index * kGroupTokens * kTileK) +
           stage * (kBoxBytes / 16);
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

  // Sums kBlocks stages, all in this trip through the ring, into `total`; nothing is in flight
  // before or after.
  template <int kBlocks>
  DEVICE void sum_stages(float (&total)[kAccumulators], float (&even)[kAccumulators],
                         float (&odd)[kAccumulators]) {
    constexpr int kBatches = kBlocks * kBatchesPerStage;
    const int first = kBlocks == kStages ? 0 : filled.at;
    auto begin = [&](float (&sum)[kAccumulators], int batch) {
      const int stage = first + batch / kBatchesPerStage, part = batch % kBatchesPerStage;
      if (part == 0) wait_full(stage);
      start(sum, stage, part * MX_STEPS_PER_PROMOTION, MX_STEPS_PER_PROMOTION);
    };
    auto finish = [&](float (&sum)[kAccumulators], int batch) {
      const int stage = first + batch / kBatchesPerStage, part = batch % kBatchesPerStage;
      if (part == kBatchesPerStage - 1) release(stage);
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
    filled.advance(kBlocks);
  }

  // One stage of a tile that holds wide rows: every k-step is scaled block by block. Slow and
  // exact.
  DEVICE void sum_stage_wide(float (&total)[kAccumulators], float (&sum)[kAccumulators], int token,
                             int row, int group) {
    const u32 scratch = shared.out(index);  // int32 [tokens + rows], in the idle output buffer
    const int blocks = g.k / kStepK, upper = kGroupTokens + warp * 16 + lane / 4;
    wait_full(filled.at);
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
      Wgmma<kGroupTokens>::shared(sum, rows(filled.at) + 2 * step, box(filled.at) + 2 * step, 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(sum);
      const int p0 = load_shared_u32(scratch + 4 * upper);
      const int p1 = load_shared_u32(scratch + 4 * (upper + 8));
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        const U32x2 q = load_shared_u32x2(scratch + 4 * (i * 2 + lane % 4 * 2));
        const int q0 = static_cast<int>(q.x), q1 = static_cast<int>(q.y);
        total[i] += scale_by_power(sum[i], p0 + q0);
        total[i + 1] += scale_by_power(sum[i + 1], p0 + q1);
        total[i + 2] += scale_by_power(sum[i + 2], p1 + q0);
        total[i + 3] += scale_by_power(sum[i + 3], p1 + q1);
      }
    }
    release(filled.at);
    filled.advance();
  }

  // total * 2^(row power + token power). Easy powers multiply one after the other; others in halves
  // of their sum.
  DEVICE void scale(float (&total)[kAccumulators], bool easy) const {
    const int upper = warp * 16 + lane / 4;
    const int p0 = row_power(upper), p1 = row_power(upper + 8);
    const u32 tokens = powers + 4 * (kRows + index * kGroupTokens + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      const U32x2 q = load_shared_u32x2(tokens + 8 * i);
      const int q0 = static_cast<int>(q.x), q1 = static_cast<int>(q.y);
      if (easy) {
        const float s0 = power_of_two(p0), s1 = power_of_two(p1);
        const float c0 = power_of_two(q0), c1 = power_of_two(q1);
        total[i] = total[i] * s0 * c0;
        total[i + 1] = total[i + 1] * s0 * c1;
        total[i + 2] = total[i + 2] * s1 * c0;
        total[i + 3] = total[i + 3] * s1 * c1;
      } else {
        total[i] = scale_by_power(total[i], p0 + q0);
        total[i + 1] = scale_by_power(total[i + 1], p0 + q1);
        total[i + 2] = scale_by_power(total[i + 2], p1 + q0);
        total[i + 3] = scale_by_power(total[i + 3], p1 + q1);
      }
    }
  }

  // 16-bit D = alpha * total: 64 tokens x 64 rows at a time, turned around by stmatrix, two
  // buffers; TMA clips what lies outside.
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
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* v = &total[(chunk * (kPlainChunk / 8) + j + i / 2) * 4 + i % 2 * 2];
          words[i] =
              MX_PLAIN_DTYPE == kBfloat16 ? pack_bfloat16(v[0], v[1]) : pack_float16(v[0], v[1]);
        }
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

  // Address of (token, row) of the sums: 32 bytes move by the token, so that a warp's stores fall
  // into all banks.
  DEVICE u32 place(int token, int row) const {
    return shared.out(index) + (token * kTileRows + (row ^ (token / 2 % 4 * 8))) * 4;
  }

  // Everything else: kChunk tokens in FP32 through this warpgroup's buffer.
  DEVICE void store_full(const float (&total)[kAccumulators], int token, int row) const {
    const int upper = warp * 16 + lane / 4;
#pragma unroll
    for (int chunk = 0; chunk < kGroupTokens / kChunk; ++chunk) {
      sync();
#pragma unroll
      for (int i = 0; i < kChunk / 2; i += 4) {
        const float* v = &total[chunk * (kChunk / 2) + i];
        const int at = i * 2 + lane % 4 * 2;
        store_shared_f32(place(at, upper), v[0]);
        store_shared_f32(place(at + 1, upper), v[1]);
        store_shared_f32(place(at, upper + 8), v[2]);
        store_shared_f32(place(at + 1, upper + 8), v[3]);
      }
      sync();
      auto product = [&](int at, int pair) { return load_shared_f32x2(place(at, 2 * pair)); };
      finish_rows<kChunk, kWarpgroup>(g.epilogue, product, token + chunk * kChunk, row,
                                      shared.out(index), 1 + index);
    }
    sync();
  }

  DEVICE void run(const TensorMap& d) {
    const Walk walk(g);
    int number = 0;
    for (int tile = blockIdx.x; tile < walk.count; tile += gridDim.x, ++number) {
      const int buffer = buffer_of(number);
      const int token = walk.token(tile) + index * kGroupTokens, row = walk.row(tile);
      powers = shared.powers(buffer);
      mbarrier_wait(shared.powers_full(buffer), parity_of(number));
      const int largest = largest_power();
      float total[kAccumulators], even[kAccumulators], odd[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] = 0.f;
      if (largest == kWideRow) {
        if (thread == 0) bulk_wait_read<0>();
#pragma unroll 1
        for (int group = 0; group < walk.groups; ++group) {
          sum_stage_wide(total, even, token, row, group);
        }
      } else {
        int left = walk.groups;
        while (left > 0) {
#pragma unroll 1
          for (; left >= kUnroll && filled.at % kUnroll == 0; left -= kUnroll) {
            sum_stages<kUnroll>(total, even, odd);
          }
          if (left > 0) {
            sum_stages<1>(total, even, odd);
            --left;
          }
        }
        scale(total, largest <= kEasyPower);
      }
      __syncwarp();  // every lane has read its powers
      if (lane == 0) mbarrier_arrive(shared.powers_empty(buffer));
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
    if (MX_PLAIN_DTYPE && thread == 0) bulk_wait_all();
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    gemm_decoded(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap d,
                 const __grid_constant__ PackedGemm g) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};

  // Prologue
  let_next_grid_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared.full(i), 1 + 4);
      mbarrier_init(shared.empty(i), 4 * kConsumers);
    }
    for (int i = 0; i < kSlots; ++i) mbarrier_init(shared.slot_full(i), 1);
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.powers_full(i), kDecodingWarps);
      mbarrier_init(shared.powers_empty(i), 4 * kConsumers);
    }
    mbarrier_init_fence();
  }
  fill_fold_table(reinterpret_cast<U32x2*>(memory + kTableOffset));
  __syncthreads();

  // Steady state, drain and epilogue, by role
  if (uniform(threadIdx.x / kWarpgroup) >= kConsumers) {
    give_registers<kDecoderRegisters>();
    if constexpr (MX_CANONICAL) {
      wait_for_previous_grid();
      CanonicalDecoder(g, a, shared).run();
    } else {
      PackedDecoder decoder(g, a, shared);
      if (g.early) decoder.ask_first_tiles();
      wait_for_previous_grid();
      if (!g.early) decoder.ask_first_tiles();
      decoder.run();
    }
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_grid();
    Consumer(g, shared).run(d);
  }
}
