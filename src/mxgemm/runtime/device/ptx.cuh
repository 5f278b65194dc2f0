// Hopper's instructions as functions, one each, and the integer types. No header is included, so
// that NVRTC needs no CUDA toolkit. Source: PTX ISA 8.x, sections "mbarrier", "cp.async.bulk",
// "wgmma", "griddepcontrol".
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i16 = short;

struct alignas(64) TensorMap {
  u64 opaque[16];
};

struct alignas(8) U32x2 {
  u32 x, y;
};
struct alignas(16) U32x4 {
  u32 x, y, z, w;
};
struct alignas(8) F32x2 {
  float x, y;
};

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

#define DEVICE __device__ __forceinline__

DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier

DEVICE void mbarrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void mbarrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters

DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where another block of the cluster has what is at `address` here.
DEVICE u32 cluster_address(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Whoever has waited sees the mbarriers that others initialized and fenced before they arrived.
DEVICE void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Lanes that are told to arrive. Without qualifiers, with which it waits for all memory of the GPU:
// whoever waits sees what wgmma has read as read, but not what this block's threads wrote. With a
// predicate, so that what leads to the address stays out of it.
DEVICE void mbarrier_arrive_cluster(u32 barrier, bool arrives) {
  asm volatile(
      "{\n.reg .pred arrives;\nsetp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cluster.b64 _, [%0];\n}" ::"r"(barrier),
      "r"(static_cast<u32>(arrives))
      : "memory");
}

// To another block of the cluster; `barrier` is there, too.
DEVICE void bulk_send(u32 target, u32 source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(target),
      "r"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- copies

DEVICE void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE void tma_load(u32 target, const TensorMap* map, u32 barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

DEVICE void tma_store(const TensorMap* map, u32 source, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(source), "r"(column), "r"(row)
      : "memory");
}

DEVICE void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// A hint; the memory may change until it is read.
DEVICE void prefetch_bulk(const void* source, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// The same from any address, any number of bytes.
DEVICE void prefetch_unaligned(const void* source, u32 bytes) {
  const u64 address = reinterpret_cast<u64>(source);
  const u32 before = address % 16;
  prefetch_bulk(reinterpret_cast<const void*>(address - before), (before + bytes + 15) / 16 * 16);
}

DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// The shared memory that is stored from may be written again, or given back: the kernel's end waits
// for the stores.
template <int kPending>
DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

DEVICE void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

DEVICE void copy_async_16(u32 target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

DEVICE void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE U32x2 load_streamed(const U32x2* pointer) {
  U32x2 v;
  asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(pointer));
  return v;
}

DEVICE U32x4 load_streamed(const U32x4* pointer) {
  U32x4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// Data that nobody reads again here: not kept in L1, its neighbours asked for.
DEVICE U32x4 load_once(const U32x4* pointer) {
  U32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

DEVICE u32 load_once(const u16* pointer) {
  u16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u16 %0, [%1];" : "=h"(v) : "l"(pointer));
  return v;
}

// ---- shared memory by address

DEVICE u32 load_shared_u8(u32 address) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

DEVICE u32 load_shared_u16(u32 address) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}

DEVICE int load_shared_i16(u32 address) { return static_cast<i16>(load_shared_u16(address)); }

DEVICE u32 load_shared_u32(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

DEVICE float load_shared_f32(u32 address) { return __uint_as_float(load_shared_u32(address)); }

DEVICE U32x2 load_shared_u32x2(u32 address) {
  U32x2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

DEVICE U32x4 load_shared_u32x4(u32 address) {
  U32x4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

DEVICE F32x2 load_shared_f32x2(u32 address) {
  F32x2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

DEVICE void store_shared_u16(u32 address, u32 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<u16>(value)) : "memory");
}

DEVICE void store_shared_u32(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

DEVICE void store_shared_f32(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

DEVICE void store_shared_f32x2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

DEVICE void store_shared_u32x4(u32 address, const U32x4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

DEVICE void store_matrix_x4(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

DEVICE void store_matrix_x4_transposed(u32 address, const u32 (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// Word lane % 4 of row lane / 4 of four matrices of 8 rows x 16 bytes, whose rows' addresses lanes
// 8 i .. 8 i + 7 give.
DEVICE U32x4 load_matrix_x4(u32 address) {
  U32x4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// ---- barriers, grids, registers

DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// `value`, which is the same in all lanes: the compiler then knows, and computes what depends on it
// once a warp.
DEVICE u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

// True in one lane of a converged warp, always the same one: what it asks for needs no loop over
// lanes, which the compiler else puts around it.
DEVICE bool elected() {
  u32 one;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, one;\n}"
               : "=r"(one));
  return one;
}

// `value`, as if it had just been read: what depends on it is not kept in registers over a loop.
DEVICE u32 renewed(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}

// As named_barrier; whether `value` was true in all of its threads.
DEVICE bool named_barrier_all(int id, int threads, bool value) {
  int all;
  asm volatile(
      "{\n.reg .pred mine, all;\nsetp.ne.b32 mine, %3, 0;\n"
      "bar.red.and.pred all, %1, %2, mine;\nselp.b32 %0, 1, 0, all;\n}"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return uniform(all);
}

// Waits for the kernel before this one in the stream when launched with programmatic serialization;
// else returns at once.
DEVICE void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE void let_next_grid_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <int kRegisters>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

DEVICE u32 multiprocessor() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

DEVICE u32 min_u16x2(u32 a, u32 b) {
  u32 d;
  asm("min.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

DEVICE u32 max_u16x2(u32 a, u32 b) {
  u32 d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// ---- wgmma

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of accumulators, or of operands in registers,
// across a wgmma group.
template <int kCount>
DEVICE void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

template <int kCount>
DEVICE void pin(u32 (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Descriptor of a K-major operand in shared memory: rows of 128 bytes, 128-byte swizzle, groups of
// 8 rows 1024 bytes apart.
constexpr u64 kSwizzledRows = 1ull << 62 | (1024ull >> 4) << 32 | 1ull << 16;
DEVICE u64 wgmma_descriptor(u32 address) { return kSwizzledRows | (address & 0x3FFFF) >> 4; }

// ---- numbers

// 2^power for a power in [-126, 127].
DEVICE float power_of_two(int power) { return __int_as_float((power + 127) << 23); }

// value * 2^power, rounded once: the power is applied in two halves of one sign, so that nothing
// overflows or loses bits on the way to a representable result. |value| < 2^48.
DEVICE float scale_by_power(float value, int power) {
  power = max(power, -252);
  const int half = power >> 1;
  return value * power_of_two(half) * power_of_two(power - half);
}
