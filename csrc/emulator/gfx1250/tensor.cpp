// Tensor data mover: tiles of up to five dimensions between global memory and LDS, described in
// scalar registers.
//
// The tile's elements fill LDS densely, first dimension fastest; a load may skip some LDS bytes
// after every so many written. A coordinate at or past its tensor extent (which counts from the
// tile's start) loads as zero and is not stored. Every dimension of the tile beyond the first may
// be given as 0, which means 1. With a workgroup mask the named members of the cluster are expected
// to make the same request: each gets its own data by its own request, and its own wait covers it.
// Source: CDNA5 ISA guide, section on tensor data movement.
#include <algorithm>
#include <cstring>

#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;

constexpr int kDimensions = 5;
constexpr u32 kValid = 1, kTensorType = 2;

// Bits [low, low + count) of consecutive scalar registers.
class Bits {
 public:
  Bits(const Wave& wave, const Operand* operand) {
    if (operand && operand->kind == Kind::kScalar && operand->index != kNull)
      for (int i = 0; i < operand->words; ++i) words_[i] = wave.scalars[operand->index + i];
  }
  u64 get(int low, int count) const {
    u64 value = 0;
    for (int i = count - 1; i >= 0; --i)
      value = value << 1 | (words_[(low + i) / 32] >> ((low + i) % 32) & 1);
    return value;
  }

 private:
  u32 words_[8] = {};
};

struct Descriptor {
  bool valid, gather, iterate, pad;
  u32 lds, element_bytes, workgroup_mask;
  u64 global;
  u32 pad_interval, pad_amount;  // bytes
  u64 extent[kDimensions];       // of the tensor from the tile's start
  u32 tile[kDimensions];
  u64 stride[kDimensions];  // elements; [0] is 1
  u32 repeats;
  u64 lds_step, global_step;  // elements, per repeat
  std::vector<u64> rows;      // gather: row numbers
};

Descriptor parse(const Wave& wave, const Instruction& i) {
  const Bits g0(wave, &i.op(0)), g1(wave, &i.op(1)),
      g2(wave, i.num_operands > 2 ? &i.op(2) : nullptr),
      g3(wave, i.num_operands > 3 ? &i.op(3) : nullptr);
  Descriptor d{};
  d.valid = g0.get(0, 2) == kValid;
  if (!d.valid) return d;
  if (g0.get(126, 2) != kTensorType)
    throw Fault("descriptor", format("tensor descriptor type must be %u, got %llu", kTensorType,
                                     (unsigned long long)g0.get(126, 2)));
  d.gather = g0.get(31, 1);
  d.lds = u32(g0.get(32, 32));
  d.global = g0.get(64, 57);
  d.workgroup_mask = u32(g1.get(0, 16));
  d.element_bytes = 1u << g1.get(16, 2);
  if (g1.get(18, 1)) throw Fault("unsupported", "tensor transfer with an atomic barrier");
  d.iterate = g1.get(19, 1) && !d.gather;
  d.pad = g1.get(20, 1);
  d.pad_interval = 4u << (g1.get(22, 3) + 1);
  d.pad_amount = 4u * (u32(g1.get(25, 7)) + 1);
  d.extent[0] = g1.get(48, 32);
  d.extent[1] = g1.get(80, 32);
  for (int n = 0; n < 3; ++n) d.tile[n] = u32(g1.get(112 + 16 * n, 16));
  d.stride[0] = 1;
  d.stride[1] = g1.get(160, 48);
  d.stride[2] = g1.get(208, 48);
  d.extent[2] = g2.get(0, 32);
  d.repeats = 1;
  if (d.gather) {
    const bool wide = g0.get(30, 1);
    const u32 most = wide ? 8 : 16, width = wide ? 32 : 16, per_group = most / 2;
    if (d.tile[1] > most)
      throw Fault("descriptor",
                  format("gather of %u rows, at most %u fit the descriptor", d.tile[1], most));
    for (u32 n = 0; n < d.tile[1]; ++n)
      d.rows.push_back((n < per_group ? g2 : g3).get(int(n % per_group * width), int(width)));
    d.tile[2] = 0;
  } else if (d.iterate) {
    d.lds_step = g2.get(32, 32);
    d.global_step = g2.get(64, 48);
    d.repeats = u32(g2.get(112, 16)) + 1;
  } else {
    d.extent[3] = g2.get(32, 32);
    d.stride[3] = g2.get(64, 48);
    d.tile[3] = u32(g2.get(112, 16));
    d.stride[4] = g3.get(0, 48);
    d.extent[4] = g3.get(48, 32);
    d.tile[4] = u32(g3.get(80, 16));
  }
  return d;
}

class TensorTransfer : public AsyncOperation {
 public:
  void perform(Wave& wave) override;
  void lds_segments(std::vector<Segment>& segments) const override {
    for (const Piece& piece : pieces_) segments.push_back({piece.lds, piece.bytes});
  }

  void plan(const Descriptor& d, bool load);
  u64 bytes_inside() const;
  void check_bounds(const Workgroup& workgroup) const;
  void poison(Workgroup& workgroup) const {
    for (const Piece& piece : pieces_) workgroup.poison_lds(piece.lds, piece.bytes);
  }

 private:
  struct Piece {
    u32 lds, bytes;
    u64 global;
    bool inside;  // of the tensor: otherwise zeros are loaded, nothing is stored
  };
  void plan_tile(const Descriptor& d, u32 lds, u64 global);
  void plan_row(const Descriptor& d, u32 lds, u64 written, u64 global, bool inside);
  void add_run(const Descriptor& d, u32 lds, u64 written, u64 bytes, u64 global, bool inside);

  bool load_ = false;
  std::vector<Piece> pieces_;
};

void TensorTransfer::add_run(const Descriptor& d, u32 lds, u64 written, u64 bytes, u64 global,
                             bool inside) {
  const bool pad = load_ && d.pad;
  while (bytes) {
    const u64 run = pad ? std::min<u64>(bytes, d.pad_interval - written % d.pad_interval) : bytes;
    const u32 at = lds + u32(written + (pad ? written / d.pad_interval * d.pad_amount : 0));
    pieces_.push_back({at, u32(run), global, inside});
    written += run;
    global += run;
    bytes -= run;
  }
}

// `written`: bytes of the tile before this row.
void TensorTransfer::plan_row(const Descriptor& d, u32 lds, u64 written, u64 global, bool inside) {
  const u64 row = u64(d.tile[0]) * d.element_bytes;
  const u64 valid = inside ? std::min<u64>(d.tile[0], d.extent[0]) * d.element_bytes : 0;
  if (valid) add_run(d, lds, written, valid, global, true);
  if (load_ && valid < row) add_run(d, lds, written + valid, row - valid, 0, false);
}

void TensorTransfer::plan_tile(const Descriptor& d, u32 lds, u64 global) {
  u32 tile[kDimensions];
  for (int n = 0; n < kDimensions; ++n) tile[n] = n ? std::max<u32>(1, d.tile[n]) : d.tile[n];
  u64 written = 0;
  u32 at[kDimensions] = {};
  for (;;) {
    bool inside = true;
    u64 element = 0;
    if (d.gather) {
      const u64 row = d.rows[at[1]];
      inside = row < d.extent[1];
      element = row * d.stride[1];
    } else {
      for (int n = 1; n < kDimensions; ++n) {
        if (d.tile[n]) inside &= at[n] < d.extent[n];
        element += at[n] * d.stride[n];
      }
    }
    plan_row(d, lds, written, global + element * d.element_bytes, inside);
    written += u64(tile[0]) * d.element_bytes;
    int n = 1;
    while (n < kDimensions && ++at[n] == tile[n]) at[n++] = 0;
    if (n == kDimensions) return;
  }
}

void TensorTransfer::plan(const Descriptor& d, bool load) {
  load_ = load;
  if (!d.valid || d.tile[0] == 0 || (d.gather && d.rows.empty()))
    return;  // nothing moves, still counted
  if (load && d.pad && (u64(d.tile[0]) * d.element_bytes) % 4)
    throw Fault("descriptor", format("padding needs rows of whole dwords, got %llu bytes",
                                     (unsigned long long)(u64(d.tile[0]) * d.element_bytes)));
  for (u32 n = 0; n < d.repeats; ++n)
    plan_tile(d, d.lds + u32(n * d.lds_step * d.element_bytes),
              d.global + n * d.global_step * d.element_bytes);
  lds_reads = !load && !pieces_.empty();
  lds_writes = load && !pieces_.empty();
  lds_first = ~0u;
  for (const Piece& piece : pieces_) {
    lds_first = std::min(lds_first, piece.lds);
    lds_end = std::max(lds_end, piece.lds + piece.bytes);
  }
}

u64 TensorTransfer::bytes_inside() const {
  u64 bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.inside ? piece.bytes : 0;
  return bytes;
}

void TensorTransfer::check_bounds(const Workgroup& workgroup) const {
  for (const Piece& piece : pieces_)
    if (u64(piece.lds) + piece.bytes > workgroup.lds.size())
      throw Fault("access",
                  format("tensor transfer of %u LDS bytes at 0x%x, the workgroup has 0x%zx",
                         piece.bytes, piece.lds, workgroup.lds.size()),
                  format("LDS bytes [0x%x, 0x%x)", piece.lds, piece.lds + piece.bytes));
}

void TensorTransfer::perform(Wave& wave) {
  uint8_t* lds = wave.workgroup.lds.data();
  Cluster& cluster = wave.workgroup.cluster;
  for (const Piece& piece : pieces_) {
    if (!piece.inside)
      std::memset(lds + piece.lds, 0, piece.bytes);
    else if (load_)
      std::memcpy(lds + piece.lds,
                  cluster.global_at(*instruction, piece.global, piece.bytes, false), piece.bytes);
    else
      std::memcpy(cluster.global_at(*instruction, piece.global, piece.bytes, true), lds + piece.lds,
                  piece.bytes);
  }
}

void check_mask(const Wave& wave, const Descriptor& d) {
  const Cluster& cluster = wave.workgroup.cluster;
  if (d.workgroup_mask == 0) return;
  const size_t members = cluster.workgroups.size();
  const size_t self = wave.workgroup.first_wave / wave.workgroup.waves.size();
  if (members == 1)
    throw Fault("descriptor", "workgroup mask must be 0 outside a cluster",
                format("mask 0x%x", d.workgroup_mask));
  if (d.workgroup_mask >> members || !(d.workgroup_mask >> self & 1))
    throw Fault(
        "descriptor",
        format("workgroup mask must name the requester (%zu) and members of the cluster (%zu) only",
               self, members),
        format("mask 0x%x", d.workgroup_mask));
}

template <bool load>
void transfer(Wave& wave, const Instruction& i) {
  Cluster& cluster = wave.workgroup.cluster;
  const Descriptor d = parse(wave, i);
  if (load && d.valid) check_mask(wave, d);
  auto operation = std::make_unique<TensorTransfer>();
  operation->instruction = &i;
  operation->plan(d, load);
  operation->check_bounds(wave.workgroup);
  (load ? cluster.counters.tensor_load_bytes : cluster.counters.tensor_store_bytes) +=
      operation->bytes_inside();
  if (cluster.hooks && cluster.hooks->transfer) cluster.hooks->transfer(wave, i);
  TensorTransfer* issued = operation.release();
  // The destination is undefined from issue on; an early transfer overwrites the poison at once.
  if (load) issued->poison(wave.workgroup);
  wave.issue(kTensorCount, issued);
}

}  // namespace

void add_tensor(OperationTable& table) {
  table.add({"tensor_load_to_lds", Unit::kTensor, transfer<true>});
  table.add({"tensor_store_from_lds", Unit::kTensor, transfer<false>});
}

}  // namespace mxgemm::emulator::gfx1250
