#include "gfx1250/architecture.h"

#include <algorithm>

namespace mxgemm::emulator::gfx1250 {
namespace {

constexpr uint32_t kInCluster = 1u << 6;  // IB_STS2[9:6]: any value but 0

void start_wave(Wave& wave) {
  const Workgroup& workgroup = wave.workgroup;
  const LaunchSettings& settings = workgroup.cluster.settings;
  auto owned = std::make_unique<State>();
  const bool clustered = workgroup.cluster.workgroups.size() > 1 ||
                         settings.cluster[0] * settings.cluster[1] * settings.cluster[2] > 1;
  if (clustered) owned->hardware_registers[kClusterStatus] = kInCluster;
  wave.architecture = std::move(owned);

  wave.set_scalar64(0, settings.kernarg);
  const auto& id = clustered ? workgroup.cluster.id : workgroup.id;
  wave.set_scalar(kTtmp + 9, id[0]);
  wave.set_scalar(kTtmp + 7, id[1] | id[2] << 16);
  wave.set_scalar(kTtmp + 8, uint32_t(wave.index) << 25);
  uint32_t position = 0;
  if (clustered)
    for (int axis = 0; axis < 3; ++axis) {
      position |= (workgroup.id[axis] % settings.cluster[axis]) << (4 * axis);
      position |= (settings.cluster[axis] - 1) << (12 + 4 * axis);
    }
  wave.set_scalar(kTtmp + 6, position);
  wave.scalars[kNull] = 0;
  wave.mark_scalar_written(kNull, 1);

  const uint32_t items = settings.block[0] * settings.block[1] * settings.block[2];
  const uint32_t first = uint32_t(wave.index) * kLanes;
  const uint32_t live = std::min<uint32_t>(kLanes, items - first);
  wave.set_scalar(kExec, live == kLanes ? 0xFFFFFFFFu : (1u << live) - 1);
  wave.set_scalar(kExec + 1, 0);
  uint32_t* ids = wave.vector(0);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t item = first + lane;
    const uint32_t x = item % settings.block[0], y = item / settings.block[0] % settings.block[1],
                   z = item / settings.block[0] / settings.block[1];
    ids[lane] = settings.workitem_id_dimensions > 1 ? x | y << 10 | z << 20 : x;
  }
  wave.mark_vector_written(0, 1, wave.all_lanes());
}

OperationTable make_operations() {
  OperationTable table;
  add_control(table);
  add_scalar(table);
  add_vector(table);
  add_local(table);
  add_memory(table);
  add_tensor(table);
  add_matrix(table);
  return table;
}

}  // namespace

const Architecture& architecture() {
  static const OperationTable operations = make_operations();
  static const Architecture description{
      .name = "gfx1250",
      .lanes = kLanes,
      .exec = kExec,
      .null_scalar = kNull,
      .counters = {{"loadcnt", 63, true, false},
                   {"storecnt", 63, false, false},
                   {"dscnt", 63, true, true},
                   {"kmcnt", 31, false, false},
                   {"tensorcnt", 63, true, false},
                   {"asynccnt", 63, true, false}},
      .modifiers = {"offset0", "offset1", "bitop3", "op_sel", "op_sel_hi", "neg_lo", "neg_hi",
                    "clamp", "omod", "matrix_a_fmt", "matrix_b_fmt", "matrix_a_scale",
                    "matrix_b_scale", "matrix_a_scale_fmt", "matrix_b_scale_fmt", "scale_offset",
                    "msb"},
      .operations = &operations.by_name(),
      .start_wave = &start_wave,
      .before = &before,
      .retired = &retired,
      .static_check = &static_check,
  };
  return description;
}

}  // namespace mxgemm::emulator::gfx1250
