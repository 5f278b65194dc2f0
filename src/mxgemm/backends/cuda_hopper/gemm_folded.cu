// D[M,N] = epilogue(A[M,K] @ B[N,K].T), both operands folded: E4M3 bytes, K-major, and one power of
// two a row.
//
// Operands   a, b: E4M3 [rows, k] (tensor maps, boxes of a tile's rows x 128 k, 128-byte swizzle;
//            TMA fills what lies outside with zeros, so any m, n and any k % 32 == 0 will do; where
//            many rows are missing, boxes end with the operands instead: MX_FITTED); powers int16
//            [rows rounded up to 128]. A row whose scales span more than 14 powers cannot be
//            folded: its power is kWideRow, its bytes are the codes times 2^6 without their block
//            scales, and tiles that hold such a row scale block by block.
// Tile walk  persistent; 128 x 128 tiles in groups of 16 tile rows, or 192 x 128 in groups of 8
//            tile columns, each group walked line by line (operand reuse in L2).
// Roles      the last warpgroup: one thread issues the copies; the 2 or 3 others: 64 rows of the
//            tile each.
// Pipeline   4 to 6 stages of A | B, filled by TMA (full barriers), emptied by the consumer warps
//            (empty barriers).
// Numbers    a wgmma accumulator keeps 14 significant bits and truncates, so the sum of
//            MX_STEPS_PER_PROMOTION k-steps of 32 is added to an FP32 one in registers. The sum of
//            one k-step is exact: 32 products of one scale are multiples of 1/4 up to 1152.
// Timeline   two consumers: wait full | 4 wgmma into temporary i | wait for temporary 1-i |
//            release its stage | add it | ...; two temporary accumulators keep a wgmma in flight;
//            drained every kUnroll stages, because ptxas serialises wgmma groups that live across
//            a loop's back edge (note C7514). Three consumers: wait full | 4 wgmma | wait | add;
//            the wgmmas of the other two run meanwhile. That takes a sixth less traffic from L2
//            and no drains; whichever needs fewer waves of tiles is taken.
// Power      the chip is power-limited here, so instructions count even where they hide: whatever
//            is the same in a warp is made `uniform`, for the compiler to compute it once a warp.
// Epilogue   plain 16-bit D: registers -> stmatrix -> TMA store, each warp by itself; everything
//            else through epilogue.cuh.
// Limits     k % 32 == 0, k > 0; TMA store needs D's rows 16-byte aligned (the host chooses).
#include "boxes.cuh"
#include "epilogue.cuh"
#include "folded_tiles.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

struct Consumer {
  const FoldedGemm& g;
  Shared shared;
  int index, warp, lane, thread;  // thread in the warpgroup
  Cursor filled;                  // next stage to read

  DEVICE Consumer(const FoldedGemm& gemm, Shared s)
      : g(gemm),
        shared(s),
        index(uniform(threadIdx.x / kWarpgroup)),
        warp(threadIdx.x / kWarp % 4),
        lane(threadIdx.x % kWarp),
        thread(threadIdx.x % kWarpgroup) {}

  DEVICE void sync() const { named_barrier(1 + index, kWarpgroup); }

  DEVICE void fetch_powers(int m, int n, int buffer) const {
    constexpr int kVectorsM = kRowsPerConsumer * 2 / 16, kVectorsN = kTileN * 2 / 16;
    const u32 target = shared.powers(index, buffer) + thread * 16;
    if (thread < kVectorsM) {
      // Where a tile's 64 rows lie past the last of A, the last 64 stand in.
      const int row =
          min(m + index * kRowsPerConsumer, (g.m - 1) / kRowsPerConsumer * kRowsPerConsumer);
      copy_async_16(target, g.a_powers + row + thread * 8);
    } else if (thread < kVectorsM + kVectorsN) {
      copy_async_16(target, g.b_powers + n + (thread - kVectorsM) * 8);
    }
  }

  // Largest power of the tile's rows and columns; kWideRow is larger than any.
  DEVICE int largest_power(u32 powers) const {
    int largest = 0;
    for (int i = lane; i < kPowersPerTile / 2; i += kWarp) {
      const ColumnPowers pair = load_column_powers_i16(powers + 4 * i);
      largest = max(largest, max(abs(pair.x), abs(pair.y)));
    }
    return uniform(__reduce_max_sync(~0u, static_cast<u32>(largest)));
  }

  DEVICE void release(int stage) const {
    if (lane == 0) mbarrier_arrive(shared.empty(stage));
  }

  // Descriptors of this warpgroup's rows and of the columns in the stage under the cursor.
  DEVICE void describe(u64& a, u64& b) const {
    constexpr u32 kRowsBytes = kRowsPerConsumer * kTileK;
    // In units of 16 bytes; uniform here, where all else follows from it by additions.
    const u32 rows = uniform((shared.a(filled.stage) + index * kRowsBytes) >> 4);
    a = kSwizzledRows | rows;
    b = kSwizzledRows | (rows + ((kBytesA - index * kRowsBytes) >> 4));
  }

  // Starts k-steps [first, first + count) of the stage under the cursor.
  DEVICE void start(float (&sum)[kAccumulators], int first, int count) const {
    u64 a, b;
    describe(a, b);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= first && step < first + count) {
        Wgmma<kTileN>::shared(sum, a + 2 * step, b + 2 * step, step > first);
      }
    }
    wgmma_commit();
  }

  // Starts one k-step that is not known at compile time.
  DEVICE void start_step(float (&sum)[kAccumulators], int step) const {
    u64 a, b;
    describe(a, b);
    wgmma_fence();
    Wgmma<kTileN>::shared(sum, a + 2 * step, b + 2 * step, 0);
    wgmma_commit();
  }

  // Sums `stages` stages of folded operands with one temporary accumulator: meanwhile the other
  // warpgroups' wgmmas run.
  DEVICE void sum_alone(float (&total)[kAccumulators], float (&sum)[kAccumulators], int stages) {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      mbarrier_wait(shared.full(filled.stage), filled.parity);
#pragma unroll
      for (int batch = 0; batch < kBatchesPerStage; ++batch) {
        pin(sum);
        start(sum, batch * MX_STEPS_PER_PROMOTION, MX_STEPS_PER_PROMOTION);
        wgmma_wait<0>();
        if (batch == kBatchesPerStage - 1) release(filled.stage);
        pin(sum);
#pragma unroll
        for (int j = 0; j < kAccumulators; ++j) total[j] += sum[j];
      }
      filled.next();
    }
  }

  // Sums kBlocks stages of folded operands into `total`; nothing is in flight before or after.
  template <int kBlocks>
  DEVICE void sum_folded(float (&total)[kAccumulators], float (&even)[kAccumulators],
                         float (&odd)[kAccumulators]) {
    constexpr int kBatches = kBlocks * kBatchesPerStage;
    // Starts a batch; returns the stage that its end releases, or -1.
    auto begin = [&](float (&sum)[kAccumulators], int batch) {
      const int part = batch % kBatchesPerStage, stage = filled.stage;
      if (part == 0) mbarrier_wait(shared.full(stage), filled.parity);
      start(sum, part * MX_STEPS_PER_PROMOTION, MX_STEPS_PER_PROMOTION);
      if (part < kBatchesPerStage - 1) return -1;
      filled.next();
      return stage;
    };
    auto finish = [&](float (&sum)[kAccumulators], int batch, int stage) {
      if (batch % kBatchesPerStage == kBatchesPerStage - 1) release(stage);
      pin(sum);
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) total[i] += sum[i];
    };
    int stage = begin(even, 0);
#pragma unroll
    for (int batch = 1; batch < kBatches; ++batch) {
      const int next = begin(batch % 2 ? odd : even, batch);
      wgmma_wait<1>();
      finish(batch % 2 ? even : odd, batch - 1, stage);
      stage = next;
    }
    wgmma_wait<0>();
    finish(kBatches % 2 ? even : odd, kBatches - 1, stage);
  }

  // Scale bytes of a row's blocks in a stage, the first one lowest: its own where the row is wide,
  // else those that say its power four times. A NaN block's bytes are NaN, whatever its scale.
  DEVICE u32 block_scales(const u8* scales, long long pitch, int row, int rows, int stage,
                          int power) const {
    constexpr u32 kFour = 0x01010101;
    if (power != kWideRow) return (power + kScaleOfOne) * kFour;
    const u8* first = scales + row * pitch + stage * kSteps;
    if (g.k % kTileK == 0 && reinterpret_cast<u64>(first) % kSteps == 0) {
      return row < rows ? *reinterpret_cast<const u32*>(first) : kScaleOfOne * kFour;
    }
    u32 word = 0;
    for (int step = 0; step < kSteps; ++step) {
      const bool inside = row < rows && stage * kSteps + step < g.k / kStepK;
      word |= (inside ? first[step] : kScaleOfOne) << (8 * step);
    }
    return word;
  }

  // Those of the column and of the row of the tile whose factors this thread writes.
  DEVICE U32x2 block_scales(u32 powers, int m, int n, int stage) const {
    const int row = thread % kRowsPerConsumer;
    auto power = [&](int i) { return load_shared_i16(powers + 2 * i); };
    return {block_scales(g.b_scales, g.b_scales_pitch, n + thread, g.n, stage,
                         power(kRowsPerConsumer + thread)),
            block_scales(g.a_scales, g.a_scales_pitch, m + row, g.m, stage, power(row))};
  }

  // Writes a stage's factors (or, where one would leave FP32's range on the way, powers) of
  // columns and rows to `factors`, [steps][columns | rows].
  template <typename Factor>
  DEVICE void write_factors(u32 factors, U32x2 scales, Factor factor) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const u32 target = factors + step * kFactorsPerStep * 4;
      store_shared_u32(target + thread * 4, factor(block_power(scales.x, step)));
      if (thread < kRowsPerConsumer) {
        store_shared_u32(target + (kTileN + thread) * 4, factor(block_power(scales.y, step)));
      }
    }
  }

  static DEVICE int block_power(u32 scales, int step) {
    return static_cast<int>(scales >> (8 * step) & 255) - kScaleOfOne;
  }

  static DEVICE bool easy(U32x2 scales) {
    bool all = true;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      all &= abs(block_power(scales.x, step)) <= kEasyPower;
      all &= abs(block_power(scales.y, step)) <= kEasyPower;
    }
    return all;
  }

  // Sums `stages` stages for a tile that holds wide rows: every k-step's sum, which is exact, is
  // scaled by its two blocks before it is added.
  DEVICE void sum_wide(float (&total)[kAccumulators], float (&even)[kAccumulators],
                       float (&odd)[kAccumulators], u32 powers, int m, int n, int stages) {
    if (lane == 0) bulk_wait_read<0>();  // the factors lie in the output buffer
    sync();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const U32x2 scales = block_scales(powers, m, n, stage);
      const u32 factors = shared.out(index) + stage % 2 * (kSteps * kFactorsPerStep * 4);
      write_factors(factors, scales,
                    [](int power) { return __float_as_uint(power_of_two(max(power, -126))); });
      const bool all_easy = named_barrier_all(1 + index, kWarpgroup, easy(scales));
      if (!all_easy) {
        write_factors(factors, scales, [](int power) { return power; });
        sync();
      }
      mbarrier_wait(shared.full(filled.stage), filled.parity);
      if (all_easy) {
        add_easy_blocks(total, even, odd, factors);
      } else {
        add_blocks(total, even, factors);
      }
      release(filled.stage);
      filled.next();
    }
    sync();
  }

  // total += the stage's four k-steps, each scaled by its blocks' factors one after the other.
  DEVICE void add_easy_blocks(float (&total)[kAccumulators], float (&even)[kAccumulators],
                              float (&odd)[kAccumulators], u32 factors) const {
    auto finish = [&](float (&sum)[kAccumulators], int step) {
      const u32 columns = factors + (step * kFactorsPerStep + lane % 4 * 2) * 4;
      const u32 rows = factors + (step * kFactorsPerStep + kTileN + warp * 16 + lane / 4) * 4;
      const float r0 = load_shared_f32(rows), r1 = load_shared_f32(rows + 8 * 4);
      pin(sum);
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        const F32x2 c = load_shared_f32x2(columns + i * 8);
        total[i] = __fmaf_rn(sum[i] * r0, c.x, total[i]);
        total[i + 1] = __fmaf_rn(sum[i + 1] * r0, c.y, total[i + 1]);
        total[i + 2] = __fmaf_rn(sum[i + 2] * r1, c.x, total[i + 2]);
        total[i + 3] = __fmaf_rn(sum[i + 3] * r1, c.y, total[i + 3]);
      }
    };
    if constexpr (!kTwoSums) {
#pragma unroll 1
      for (int step = 0; step < kSteps; ++step) {
        pin(even);
        start_step(even, step);
        wgmma_wait<0>();
        finish(even, step);
      }
      return;
    }
    start(even, 0, 1);
    start(odd, 1, 1);
    wgmma_wait<1>();
    finish(even, 0);
    start(even, 2, 1);
    wgmma_wait<1>();
    finish(odd, 1);
    start(odd, 3, 1);
    wgmma_wait<1>();
    finish(even, 2);
    wgmma_wait<0>();
    finish(odd, 3);
  }

  // The same with powers for factors.
  DEVICE void add_blocks(float (&total)[kAccumulators], float (&sum)[kAccumulators],
                         u32 factors) const {
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      const u32 columns = factors + (step * kFactorsPerStep + lane % 4 * 2) * 4;
      const u32 rows = factors + (step * kFactorsPerStep + kTileN + warp * 16 + lane / 4) * 4;
      pin(sum);
      start_step(sum, step);
      const int r0 = load_shared_u32(rows), r1 = load_shared_u32(rows + 8 * 4);
      wgmma_wait<0>();
      pin(sum);
      add_by_powers(total, sum, r0, r1, columns);
    }
  }

  DEVICE void scale_rows(float (&total)[kAccumulators], u32 powers, bool easy) const {
    const u32 rows = powers + (warp * 16 + lane / 4) * 2;
    const int p0 = load_shared_i16(rows), p1 = load_shared_i16(rows + 16);
    const u32 columns = powers + (kRowsPerConsumer + lane % 4 * 2) * 2;
    auto of_columns = [&](int i) { return load_column_powers_i16(columns + 4 * i); };
    scale_by_powers(total, p0, p1, of_columns, easy);
  }

  // 16-bit D: a warp's rows by themselves, in chunks of 64 columns; TMA clips what lies outside.
  DEVICE void store_plain(const float (&total)[kAccumulators], const TensorMap* map, int m,
                          int n) const {
    constexpr int kChunks = kTileN / 64;
    const u32 row = lane % kRowsPerWarp, half = lane / kRowsPerWarp;
    const u32 buffer = shared.out(index) + warp * kOutChunks * kChunkBytes;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk == 0 || kOutChunks == 1) {
        if (lane == 0) bulk_wait_read<0>();
        __syncwarp();
      }
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        u32 words[4];
        pack_columns<MX_PLAIN_DTYPE>(total, chunk * 8 + j, words);
        const u32 place = row * 128 + (((j + half) ^ (row % 8)) << 4);
        store_matrix_x4(buffer + chunk % kOutChunks * kChunkBytes + place, words);
      }
      if (chunk < kChunks - 1 && kOutChunks > 1) continue;
      async_proxy_fence();
      __syncwarp();
      if (lane == 0) {
        for (int i = kOutChunks == 1 ? chunk : 0; i <= chunk; ++i) {
          tma_store(map, buffer + i % kOutChunks * kChunkBytes, n + i * 64,
                    m + warp * kRowsPerWarp);
        }
        bulk_commit();
      }
    }
  }

  // Everything else: chunks of 64 columns in FP32 through this warpgroup's buffer.
  DEVICE void store_full(const float (&total)[kAccumulators], int m, int n) const {
    const u32 buffer = shared.out(index);
    // 16 bytes of a row move by the row's number, so that a quarter warp's rows fall into different
    // banks.
    auto place = [&](int row, int pair) {
      return buffer + row * 256 + ((pair ^ (row % 8 * 4)) * 8);
    };
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int chunk = 0; chunk < kTileN / 64; ++chunk) {
      sync();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* v = &total[(chunk * 8 + j) * 4];
        store_shared_f32x2(place(row, j * 4 + lane % 4), v[0], v[1]);
        store_shared_f32x2(place(row + 8, j * 4 + lane % 4), v[2], v[3]);
      }
      sync();
      auto product = [&](int r, int pair) { return load_shared_f32x2(place(r, pair)); };
      finish_rows<kRowsPerConsumer, kWarpgroup>(g.epilogue, product, m, n + chunk * 64, buffer,
                                                1 + index);
    }
  }
};

DEVICE void produce(const FoldedGemm& g, Shared shared, const RowBoxes& a, const RowBoxes& b,
                    int first_tile) {
  const int stages = (g.k + kTileK - 1) / kTileK;
  Cursor cursor;
  for (TileWalk tiles(g, first_tile); !tiles.done(); tiles.next()) {
    const int m = tiles.m(), n = tiles.n();
    const int rows_a = MX_FITTED ? min(g.m - m, kTileM) : kTileM;
    const int rows_b = MX_FITTED ? min(g.n - n, kTileN) : kTileN;
    const TensorMap *map_a = a.of(rows_a == kTileM), *map_b = b.of(rows_b == kTileN);
    for (int i = 0; i < stages; ++i) {
      const u32 full = shared.full(cursor.stage);
      mbarrier_wait(shared.empty(cursor.stage), cursor.parity ^ 1);
      mbarrier_expect(full, (rows_a + rows_b) * kTileK);
      tma_load(shared.a(cursor.stage), map_a, full, i * kTileK, m);
      tma_load(shared.b(cursor.stage), map_b, full, i * kTileK, n);
      cursor.next();
    }
  }
}

DEVICE void consume(const FoldedGemm& g, Shared shared, const TensorMap& d, int first_tile) {
  const int stages = (g.k + kTileK - 1) / kTileK;
  Consumer consumer(g, shared);
  TileWalk tiles(g, first_tile);
  if (tiles.done()) return;
  int buffer = 0;
  consumer.fetch_powers(tiles.m(), tiles.n(), buffer);
  copy_async_wait();
  consumer.sync();
  int largest = consumer.largest_power(shared.powers(consumer.index, buffer));
  while (!tiles.done()) {
    const u32 powers = shared.powers(consumer.index, buffer);
    const int m = tiles.m() + consumer.index * kRowsPerConsumer, n = tiles.n();
    buffer ^= 1;
    tiles.next();
    if (!tiles.done()) consumer.fetch_powers(tiles.m(), tiles.n(), buffer);

    float total[kAccumulators], even[kAccumulators], odd[kAccumulators];
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) total[i] = 0.f;
    if (largest == kWideRow) {
      consumer.sum_wide(total, even, odd, powers, m, n, stages);
    } else if constexpr (!kTwoSums) {
      consumer.sum_alone(total, even, stages);
    } else {
      int left = stages;
#pragma unroll 1
      for (; left >= kUnroll; left -= kUnroll) consumer.sum_folded<kUnroll>(total, even, odd);
#pragma unroll 1
      for (; left >= 4; left -= 4) consumer.sum_folded<4>(total, even, odd);
#pragma unroll 1
      for (; left > 0; --left) consumer.sum_folded<1>(total, even, odd);
    }
    if (largest != kWideRow) consumer.scale_rows(total, powers, largest <= kEasyPower);
    if (MX_PLAIN_DTYPE) {
      if (g.epilogue.alpha != 1.f) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) total[i] *= g.epilogue.alpha;
      }
      consumer.store_plain(total, &d, m, n);
    } else {
      consumer.store_full(total, m, n);
    }
    copy_async_wait();
    consumer.sync();  // all have the next tile's powers, and are done with this one's
    largest = consumer.largest_power(shared.powers(consumer.index, buffer));
  }
  if (MX_PLAIN_DTYPE && consumer.lane == 0) bulk_wait_all();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    gemm_folded(const __grid_constant__ RowBoxes a, const __grid_constant__ RowBoxes b,
                const __grid_constant__ TensorMap d, const __grid_constant__ FoldedGemm g) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};

  // Prologue
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full(stage), 1);
      mbarrier_init(shared.empty(stage), kConsumers * 4);
    }
    mbarrier_init_fence();
    prefetch_map(&a.whole);
    prefetch_map(&b.whole);
    if (MX_FITTED) prefetch_map(&a.last);
    if (MX_FITTED) prefetch_map(&b.last);
    store_shared_u32(shared.first_tile(), take_ticket(g.tickets));
  }
  wait_for_previous_grid();
  __syncthreads();
  const int first_tile = uniform(load_shared_u32(shared.first_tile()));

  // Steady state, drain and epilogue, by role
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == kConsumers * kWarpgroup) produce(g, shared, a, b, first_tile);
  } else {
    take_registers<kConsumerRegisters>();
    consume(g, shared, d, first_tile);
  }
}
