// D[M,N] = epilogue(A[M,K] @ B[N,K].T), A folded (see fold.cu), B packed in tiles (see
// packed_gemm.cuh) or canonical (MX_CANONICAL), folded in shared memory by warps of their own.
//
// Operands   a: E4M3 [m, k] (tensor map, boxes of kTokens rows x 128 k, 128-byte swizzle), powers
//            int16; b: tiles and int16 powers padded to 128 rows, or canonical codes and E8M0
//            scales.
// Tile walk  persistent, tiles of kTokens rows of A x 64 of B; see PackedWalk.
// Roles      one or two consumer warpgroups, up to 128 tokens each; behind them seven decoding
//            warps, which take pieces of 16 rows x 128 k in turns, and one that asks for copies.
// Pipeline   stages of one box of A | 64 rows of E4M3 are full when the box has arrived and four
//            pieces are decoded, empty when every consumer warp is done. Packed tiles come by bulk
//            copies to kSlots slots, or codes straight to registers, kDepth pieces ahead.
// Powers     of a tile's rows are brought to shared memory, two buffers, by the asking warp; those
//            of a canonical B all eight find from its scales.
// Numbers    B is the 64-row operand of wgmma: D comes out transposed. Promotion and wide rows as
//            in gemm_folded.cu.
// Timeline   wait full | 4 wgmma into temporary i | wait for temporary 1-i | release its stage |
//            add it | ...; drained every kUnroll stages, the two consumers in turns.
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
#define MX_SLOTS 8
#endif
#ifndef MX_DEPTH
#define MX_DEPTH 1
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
constexpr int kSlots = MX_SLOTS;  // packed tiles there or on their way
constexpr int kDepth = MX_DEPTH;  // pieces that a decoding lane holds or has asked for
constexpr int kDecoders = 7;      // warps; one more asks for copies
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + (kDecoders + 1) * kWarp;
constexpr int kConsumerRegisters = kConsumers == 2 ? 208 : 232;
constexpr int kDecoderRegisters = kConsumers == 2 ? 48 : 136;
constexpr int kAccumulators = kGroupTokens / 2;
constexpr int kBatchesPerStage = kSteps / MX_STEPS_PER_PROMOTION;
constexpr int kUnroll = 4;  // stages between drains
constexpr int kChunk = kTokens < 32 ? kTokens : 32;  // tokens of a pass of the full epilogue
constexpr int kPlainChunk = 64;                      // of the plain one
constexpr int kPowers = kRows + kTokens;
constexpr int kUnits = 2;      // blocks of 32 codes that a lane has of a piece
constexpr int kPrefetch = 16;  // without slots: groups whose packed tiles are brought to L2 ahead
constexpr int kPrefetchStep = 8;
constexpr int kTilesAhead = kSlots - kStages;  // groups for which slots are filled ahead of boxes
static_assert((kStages & (kStages - 1)) == 0 && (kSlots & (kSlots - 1)) == 0, "see Cursor");
static_assert(kStages % kUnroll == 0, "see sum_stages");
static_assert(kSlots == 0 || kTilesAhead > 0, "slots are left before their tiles' stages");
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
constexpr int kBarriers = 2 * kStages + 4 + kSlots;
constexpr int kSharedBytes = kBarriersOffset + 8 * kBarriers;
static_assert(kSharedBytes <= 232448, "Hopper gives a block 227 KiB");
static_assert(kOutBytes >= 4 * (kGroupTokens + kTileRows), "wide stages keep their powers there");

using Walk = PackedWalk<kTokens, kRows>;

// A place in a ring, by the number of a group among all of this block's.
template <int kCount>
struct Cursor {
  u32 group = 0;

  DEVICE int at() const { return group % kCount; }
  DEVICE u32 parity() const { return group / kCount % 2; }
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
  DEVICE u32 powers_full(int buffer) const { return full(2 * kStages + buffer); }
  DEVICE u32 powers_empty(int buffer) const { return powers_full(2 + buffer); }
  DEVICE u32 slot_full(int at) const { return powers_full(4 + at); }
};

// What the warps that do not multiply know.
struct Helper {
  const PackedGemm& g;
  Shared shared;
  Walk walk;
  int warp, lane;
  int token = 0, row = 0;  // where the tile starts

  DEVICE Helper(const PackedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        walk(gemm),
        warp(uniform((threadIdx.x - kConsumerThreads) / kWarp)),
        lane(threadIdx.x % kWarp) {}

  // Goes to this block's tile of a number; whether there is one.
  DEVICE bool enter(int number) {
    const int tile = blockIdx.x + number * gridDim.x;
    token = walk.token(tile);
    row = walk.row(tile);
    return tile < walk.count;
  }

  // A packed tile of these rows. Numbers of tiles fit an int: 2^31 of them are terabytes.
  DEVICE const u8* packed(int first_row, int group) const {
    return g.weights +
           static_cast<long long>(first_row / kTileRows * walk.groups + group) * kTileBytes;
  }

  // The powers of a tile's rows of B and of A, kRows + kTokens numbers, by one warp; those of
  // canonical rows by all.
  DEVICE void publish_powers(int number) const {
    constexpr int kFirst = MX_CANONICAL ? kRows : 0;
    const int buffer = buffer_of(number);
    mbarrier_wait(shared.powers_empty(buffer), parity_of(number) ^ 1);
    const u32 target = shared.powers(buffer);
    if (MX_CANONICAL) {
      constexpr int kShare = kRows / (kDecoders + 1);
      find_row_powers<kShare>(g.weights, g.b_scales, row + warp * kShare, g.n, g.k / kStepK,
                              target + 4 * warp * kShare);
    }
    if (warp == kDecoders) {
#pragma unroll 4
      for (int i = kFirst + lane; i < kPowers; i += kWarp) {
        const int at = token + i - kRows;
        const int power = i < kRows ? g.b_powers[row + i] : at < g.m ? g.a_powers[at] : 0;
        store_shared_u32(target + 4 * i, power);
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.powers_full(buffer));
  }
};

// The warp that asks for copies.
struct Producer : Helper {
  const TensorMap& tokens;
  const u8* next = nullptr;               // the packed tile whose slot is filled next,
  int next_number = 0, next_group = 0;    // of which tile of this block
  Cursor<kSlots ? kSlots : 1> slot;

  DEVICE Producer(const PackedGemm& gemm, const TensorMap& a, Shared s)
      : Helper(gemm, s), tokens(a) {}

  // Brings packed tiles near. Before the kernel before has finished too: it is a hint, and L2 stays
  // coherent.
  DEVICE void prefetch(int first, int count) const {
    count = min(count, walk.groups - first);
    if (lane == 0 && count > 0 && token == 0) {  // other tokens share them
      prefetch_bulk(packed(row, first), count * kTileBytes);
    }
  }

  DEVICE void fill_slot() {
    const int tile = blockIdx.x + next_number * gridDim.x;
    if (tile >= walk.count) return;
    if (next_group == 0) next = packed(walk.row(tile), 0);
    if (lane == 0) {
      mbarrier_expect(shared.slot_full(slot.at()), kTileBytes);
      bulk_load(shared.slot(slot.at()), next, kTileBytes, shared.slot_full(slot.at()));
    }
    ++slot.group;
    next += kTileBytes;
    if (++next_group == walk.groups) {
      next_group = 0;
      ++next_number;
    }
  }

  // What may begin before the kernel before has finished, if B is known to be there.
  DEVICE void begin(bool is_there) {
    if (MX_CANONICAL || !enter(0)) return;
    if (kSlots && is_there) {
      for (int i = 0; i < kTilesAhead; ++i) fill_slot();
    } else {
      prefetch(0, kPrefetch);
    }
  }

  DEVICE void run() {
    if (kSlots && slot.group == 0) {
      for (int i = 0; i < kTilesAhead; ++i) fill_slot();
    }
    Cursor<kStages> stage;
#pragma unroll 1
    for (int number = 0; enter(number); ++number) {
      if (!MX_CANONICAL && !kSlots && number) prefetch(0, kPrefetch);
#pragma unroll 1
      for (int group = 0; group < walk.groups; ++group, ++stage.group) {
        // Then the slot of the group before in this stage has been left, too.
        mbarrier_wait(shared.empty(stage.at()), stage.parity() ^ 1);
        if (lane == 0) {
          const u32 full = shared.full(stage.at());
          mbarrier_expect(full, kBoxBytes);
          tma_load(shared.box(stage.at()), &tokens, full, group * kTileK, token);
        }
        if (kSlots) fill_slot();
        if (!MX_CANONICAL && !kSlots && group % kPrefetchStep == 0) {
          prefetch(group + kPrefetch, kPrefetchStep);
        }
        if (group == 0) publish_powers(number);
      }
    }
  }
};

struct Decoder : Helper {
  // What a lane holds of a piece: kUnits blocks of 32 codes.
  struct Blocks {
    U32x4 words[kUnits];
    u32 notes[MX_CANONICAL ? kUnits : 1];  // scales, or both table offsets
  };
  u32 left, right;      // where in a piece of a stage the halves of this lane's first block go
  u32 first_group = 0;  // of the tile, among all of this block's

  DEVICE Decoder(const PackedGemm& gemm, Shared s) : Helper(gemm, s) {
    // Rows of one lane differ by multiples of 8: the swizzle turns all alike.
    left = lane_row() * kTileK + ((2 * lane_step() ^ lane_row()) << 4);
    right = left ^ 16;
  }

  // Row of a piece, of its first 8, and which of the group's four blocks.
  DEVICE int lane_row() const { return MX_CANONICAL ? lane / 4 : lane % 8; }
  DEVICE int lane_step() const { return MX_CANONICAL ? lane % 4 : lane / 8; }

  // Asks for the blocks of a piece of the tile, or takes them from their slot.
  DEVICE void load(Blocks& blocks, u32 at) const {
    const int piece = at % kPieces, group = at / kPieces;
    if (group >= walk.groups) return;
    if (MX_CANONICAL) {
      const int per_row = g.k / kStepK, block = group * kSteps + lane_step();
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int from = row + piece * kPieceRows + i * 8 + lane_row();
        const long long index = static_cast<long long>(from) * per_row + block;
        blocks.words[i] = {0, 0, 0, 0};
        blocks.notes[i] = 0;
        if (from < g.n && block < per_row) {
          blocks.words[i] = load_once(reinterpret_cast<const U32x4*>(g.weights) + index);
          blocks.notes[i] = g.b_scales[index];
        }
      }
      return;
    }
    const int codes = piece * kPieceBytes + lane * 16;
    const int note = piece * kPieceBytes + kPieceCodeBytes + lane_row() * 8 + lane_step() * 2;
    if (kSlots) {
      const Cursor<kSlots ? kSlots : 1> slot{first_group + group};
      const u32 source = shared.slot(slot.at());
      mbarrier_wait(shared.slot_full(slot.at()), slot.parity());
      blocks.notes[0] = load_shared_u16(source + note);
      blocks.words[0] = load_shared_u32x4(source + codes);
      blocks.words[1] = load_shared_u32x4(source + codes + kPieceCodeBytes / 2);
    } else {
      const u8* source = packed(row, group);
      blocks.notes[0] = load_once(reinterpret_cast<const u16*>(source + note));
      blocks.words[0] = load_once(reinterpret_cast<const U32x4*>(source + codes));
      blocks.words[1] =
          load_once(reinterpret_cast<const U32x4*>(source + codes + kPieceCodeBytes / 2));
    }
  }

  static DEVICE U32x2 fold(u32 word, U32x2 entry) {
    return MX_CANONICAL ? fold_word(word, entry) : fold_tile_word(word, entry);
  }

  // Folds a piece into its stage.
  DEVICE void decode(const Blocks& blocks, u32 at, u32 powers) const {
    const int piece = at % kPieces;
    const Cursor<kStages> stage{first_group + at / kPieces};
    U32x2 entries[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const u32 power = powers + 4 * (piece * kPieceRows + i * 8 + lane_row());
      const u32 offset = MX_CANONICAL ? fold_offset(blocks.notes[i], load_shared_u32(power))
                                      : (blocks.notes[0] >> (8 * i)) & 255;
      entries[i] = load_shared_u32x2(shared.table() + offset);
    }
    const u32 target = shared.folded(stage.at()) + piece * kPieceRows * kTileK;
    mbarrier_wait(shared.empty(stage.at()), stage.parity() ^ 1);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const U32x4& v = blocks.words[i];
      const U32x2 w0 = fold(v.x, entries[i]), w1 = fold(v.y, entries[i]);
      const U32x2 w2 = fold(v.z, entries[i]), w3 = fold(v.w, entries[i]);
      const u32 unit = target + i * 8 * kTileK;
      store_shared_u32x4(unit + left, MX_CANONICAL ? U32x4{w0.x, w0.y, w1.x, w1.y}
                                                   : U32x4{w0.x, w1.x, w2.x, w3.x});
      store_shared_u32x4(unit + right, MX_CANONICAL ? U32x4{w2.x, w2.y, w3.x, w3.y}
                                                    : U32x4{w0.y, w1.y, w2.y, w3.y});
    }
    async_proxy_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.full(stage.at()));
  }

  DEVICE void run() {
    const u32 pieces = walk.groups * kPieces;
    u32 next = warp;  // piece of the tile
#pragma unroll 1
    for (int number = 0; enter(number); ++number, first_group += walk.groups) {
      const u32 powers = shared.powers(buffer_of(number));
      if (MX_CANONICAL) publish_powers(number);
      Blocks blocks[kDepth];
#pragma unroll
      for (int i = 0; i < kDepth; ++i) load(blocks[i], next + i * kDecoders);
      if (MX_CANONICAL) mbarrier_wait(shared.powers_full(buffer_of(number)), parity_of(number));
      while (next < pieces) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          if (next < pieces) {
            decode(blocks[i], next, powers);
            load(blocks[i], next + kDepth * kDecoders);  // after the fence, which would wait
            next += kDecoders;
          }
        }
      }
      next -= pieces;
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

  // Sums kBlocks stages into `total`; nothing is in flight before or after. Neither half of them
  // may leave the end of the ring: then two places and constants give all addresses.
  template <int kBlocks>
  DEVICE void sum_stages(float (&total)[kAccumulators], float (&even)[kAccumulators],
                         float (&odd)[kAccumulators]) {
    constexpr int kBatches = kBlocks * kBatchesPerStage, kHalf = kBlocks > 1 ? kBlocks / 2 : 1;
    const Cursor<kStages> second{filled.group + kHalf};
    const int places[2] = {filled.at(), second.at()};
    const u32 parities[2] = {filled.parity(), second.parity()};
    auto stage_of = [&](int batch) {
      const int block = batch / kBatchesPerStage;
      return places[block / kHalf] + block % kHalf;
    };
    auto begin = [&](float (&sum)[kAccumulators], int batch) {
      const int stage = stage_of(batch), part = batch % kBatchesPerStage;
      if (part == 0) mbarrier_wait(shared.full(stage), parities[batch / kBatchesPerStage / kHalf]);
      start(sum, stage, part * MX_STEPS_PER_PROMOTION, MX_STEPS_PER_PROMOTION);
    };
    auto finish = [&](float (&sum)[kAccumulators], int batch) {
      if (batch % kBatchesPerStage == kBatchesPerStage - 1) release(stage_of(batch));
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
    filled.group += kBlocks;
  }

  // Sums a tile. The second consumer starts with half as many stages, so that one multiplies while
  // the other drains.
  DEVICE void sum_groups(float (&total)[kAccumulators], float (&even)[kAccumulators],
                         float (&odd)[kAccumulators], int left) {
    bool in_turn = index == 0;
    while (left > 0) {
#pragma unroll 1
      for (; in_turn && left >= kUnroll && filled.group % (kUnroll / 2) == 0; left -= kUnroll) {
        sum_stages<kUnroll>(total, even, odd);
      }
      in_turn = true;
      if (left >= 2) {
        sum_stages<2>(total, even, odd);
        left -= 2;
      } else if (left > 0) {
        sum_stages<1>(total, even, odd);
        --left;
      }
    }
  }

  // One stage of a tile that holds wide rows: every k-step is scaled block by block. Slow and
  // exact.
  DEVICE void sum_stage_wide(float (&total)[kAccumulators], float (&sum)[kAccumulators], int token,
                             int row, int group) {
    const u32 scratch = shared.out(index);  // int32 [tokens + rows], in the idle output buffer
    const int blocks = g.k / kStepK, upper = kGroupTokens + warp * 16 + lane / 4;
    const int stage = filled.at();
    mbarrier_wait(shared.full(stage), filled.parity());
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
    release(stage);
    ++filled.group;
  }

  DEVICE void scale(float (&total)[kAccumulators], bool easy) const {
    const int upper = warp * 16 + lane / 4;
    const u32 tokens = powers + 4 * (kRows + index * kGroupTokens + lane % 4 * 2);
    auto of_tokens = [&](int i) {
      const U32x2 pair = load_shared_u32x2(tokens + 8 * i);
      return ColumnPowers{static_cast<int>(pair.x), static_cast<int>(pair.y)};
    };
    scale_by_powers(total, row_power(upper), row_power(upper + 8), of_tokens, easy);
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
      auto product = [&](int at, int pair) { return load_shared_f32x2(buffer + place(at, 2 * pair)); };
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
      if (largest_power() == kWideRow) {
        if (thread == 0) bulk_wait_read<0>();
#pragma unroll 1
        for (int group = 0; group < walk.groups; ++group) {
          sum_stage_wide(total, even, token, row, group);
        }
      } else {
        sum_groups(total, even, odd, walk.groups);
        lane = renewed(lane);  // what depends on it was not kept through the sums
        scale(total, largest_power() <= kEasyPower);
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
  const int warp = uniform(threadIdx.x / kWarp);

  // Prologue
  let_next_grid_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared.full(i), 1 + kPieces);
      mbarrier_init(shared.empty(i), 4 * kConsumers);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.powers_full(i), MX_CANONICAL ? kDecoders + 1 : 1);
      mbarrier_init(shared.powers_empty(i), 4 * kConsumers);
    }
    for (int i = 0; i < kSlots; ++i) mbarrier_init(shared.slot_full(i), 1);
    mbarrier_init_fence();
  }
  fill_fold_table(reinterpret_cast<U32x2*>(memory + kTableOffset));
  __syncthreads();

  // Steady state, drain and epilogue, by role
  if (warp < 4 * kConsumers) {
    take_registers<kConsumerRegisters>();
    wait_for_previous_grid();
    Consumer(g, shared).run(d);
    return;
  }
  give_registers<kDecoderRegisters>();
  if (warp == 4 * kConsumers + kDecoders) {
    Producer producer(g, a, shared);
    producer.begin(g.early);
    wait_for_previous_grid();
    producer.run();
  } else {
    if (MX_CANONICAL || !kSlots || !g.early) wait_for_previous_grid();
    Decoder(g, shared).run();
  }
}
