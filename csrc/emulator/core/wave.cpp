#include "core/wave.h"

#include <algorithm>

#include "core/workgroup.h"

namespace mxgemm::emulator {
namespace {

constexpr uint32_t kPoison = 0xFFFFFFFF;  // a NaN in FP32, BF16 and FP16

}  // namespace

bool AsyncOperation::lds_conflict(const AsyncOperation& other) const {
  if (!(lds_writes || other.lds_writes) || lds_first >= other.lds_end || other.lds_first >= lds_end)
    return false;
  std::vector<Segment> mine, theirs;
  lds_segments(mine);
  other.lds_segments(theirs);
  for (const Segment& a : mine)
    for (const Segment& b : theirs)
      if (a.first < b.first + b.bytes && b.first < a.first + a.bytes) return true;
  return false;
}

Wave::Wave(Workgroup& workgroup, int index, int index_in_cluster)
    : workgroup(workgroup),
      index(index),
      index_in_cluster(index_in_cluster),
      lanes(workgroup.cluster.program.architecture->lanes) {
  const int registers = workgroup.cluster.settings.vector_registers;
  vectors_.assign(static_cast<size_t>(registers) * lanes, kPoison);
  vector_written_.assign(registers, 0);
  scalars.fill(kPoison);
  scratch.assign(static_cast<size_t>(workgroup.cluster.settings.scratch_bytes) * lanes, 0xFF);
}

Wave::~Wave() {
  for (auto& queue : queues_)
    for (AsyncOperation* operation : queue) operation->recycle();
}

uint64_t Wave::exec() const {
  const int exec = workgroup.cluster.program.architecture->exec;
  return lanes == 64 ? scalar64(exec) : scalars[exec];
}

void Wave::set_scalar(int i, uint32_t value) {
  if (i == workgroup.cluster.program.architecture->null_scalar) return;
  scalars[i] = value;
  scalar_written_[i] = true;
}

void Wave::set_scalar64(int i, uint64_t value) {
  if (i == workgroup.cluster.program.architecture->null_scalar) return;
  set_scalar(i, static_cast<uint32_t>(value));
  set_scalar(i + 1, static_cast<uint32_t>(value >> 32));
}

uint64_t Wave::source(const Operand& operand, bool wide) const {
  if (operand.kind == Kind::kConstant)
    return wide ? operand.value : static_cast<uint32_t>(operand.value);
  if (operand.index == workgroup.cluster.program.architecture->null_scalar) return 0;
  return wide ? scalar64(operand.index) : scalars[operand.index];
}

void Wave::mark_vector_written(int first, int count, uint64_t mask) {
  for (int i = first; i < first + count; ++i) vector_written_[i] |= mask;
}

void Wave::mark_scalar_written(int first, int count) {
  for (int i = first; i < first + count; ++i) scalar_written_[i] = true;
}

// ----------------------------------------------------------------------------------------------
// register checks

void Wave::check_registers(const Instruction& instruction) {
  for (RegisterRange range : instruction.vector_reads) check_vector(instruction, range, true);
  for (RegisterRange range : instruction.scalar_reads) check_scalar(instruction, range, true);
  if (num_vector_pending_)
    for (RegisterRange range : instruction.vector_writes) check_vector(instruction, range, false);
  if (num_scalar_pending_)
    for (RegisterRange range : instruction.scalar_writes) check_scalar(instruction, range, false);
}

void Wave::check_vector(const Instruction& instruction, RegisterRange range, bool reads) {
  const uint64_t needed = instruction.operation->all_lanes ? all_lanes() : exec();
  for (unsigned i = range.first; i < range.first + range.count; ++i) {
    if (num_vector_pending_ && vector_pending_[i]) fail_outstanding(Kind::kVector, i, reads);
    if (reads && (needed & ~vector_written_[i]))
      throw Fault("uninitialised",
                  format("read of a register that lanes 0x%llx never wrote",
                         (unsigned long long)(needed & ~vector_written_[i])),
                  register_name('v', i, 1), "a write");
  }
}

void Wave::check_scalar(const Instruction&, RegisterRange range, bool reads) {
  for (unsigned i = range.first; i < range.first + range.count; ++i) {
    if (num_scalar_pending_ && scalar_pending_[i]) fail_outstanding(Kind::kScalar, i, reads);
    if (reads && !scalar_written_[i])
      throw Fault("uninitialised", "read of a register that was never written",
                  register_name('s', i, 1), "a write");
  }
}

void Wave::fail_outstanding(Kind file, unsigned number, bool reads) const {
  const auto& counters = workgroup.cluster.program.architecture->counters;
  for (size_t counter = 0; counter < counters.size(); ++counter) {
    const auto& queue = queues_[counter];
    for (size_t i = 0; i < queue.size(); ++i) {
      const AsyncOperation& operation = *queue[i];
      if (operation.file != file || number < operation.first ||
          number >= unsigned(operation.first + operation.count))
        continue;
      const size_t younger = counters[counter].in_order ? queue.size() - 1 - i : 0;
      throw Fault("missing_wait",
                  format("%s of a register that the load at pc %u has not delivered",
                         reads ? "use" : "overwrite", operation.instruction->pc),
                  register_name(file == Kind::kVector ? 'v' : 's', number, 1),
                  format("s_wait_%s %zu", counters[counter].name, younger));
    }
  }
  throw Fault("missing_wait", "use of a register with an outstanding load");
}

// ----------------------------------------------------------------------------------------
// asynchronous operations

void Wave::issue(int counter, AsyncOperation* operation) {
  Cluster& cluster = workgroup.cluster;
  auto& queue = queues_[counter];
  const CounterRule& rule = cluster.program.architecture->counters[counter];
  operation->issue_epoch = epoch;
  operation->issue_tick = cluster.tick;
  operation->known = known;
  operation->performed = false;
  const bool uses_lds = operation->lds_reads || operation->lds_writes;
  if (uses_lds && cluster.settings.detect_races) {
    try {
      check_own_lds(counter, *operation);
    } catch (...) {
      operation->recycle();
      throw;
    }
  }
  if (operation->lds_end > cluster.counters.lds_high_water)
    cluster.counters.lds_high_water = operation->lds_end;
  // Where completion is not in order, a full counter proves nothing about any one operation.
  if (rule.in_order && queue.size() >= rule.maximum) retire(counter);
  queue.push_back(operation);
  for (unsigned i = operation->first; i < unsigned(operation->first + operation->count); ++i) {
    if (operation->file == Kind::kVector) {
      uint32_t* destination = vector(i);
      for (int lane = 0; lane < lanes; ++lane)
        if (operation->active >> lane & 1) destination[lane] = kPoison;
      num_vector_pending_ += !vector_pending_[i];
      vector_pending_[i] = true;
    } else if (operation->file == Kind::kScalar) {
      scalars[i] = kPoison;
      num_scalar_pending_ += !scalar_pending_[i];
      scalar_pending_[i] = true;
    }
  }
  const Timing timing = cluster.settings.timing;
  if (timing == Timing::kEarly ||
      (timing == Timing::kRandom && cluster.random(2) &&
       (!rule.executes_in_order || queue.size() == 1 || queue[queue.size() - 2]->performed))) {
    operation->performed = true;
    operation->perform(*this);
  }
}

void Wave::check_own_lds(int counter, const AsyncOperation& operation) const {
  const auto& counters = workgroup.cluster.program.architecture->counters;
  for (size_t other = 0; other < counters.size(); ++other) {
    if (int(other) == counter && counters[other].executes_in_order) continue;
    const auto& queue = queues_[other];
    for (size_t i = 0; i < queue.size(); ++i)
      if (operation.lds_conflict(*queue[i]))
        throw Fault(
            "race",
            format("LDS access overlaps this wave's own outstanding operation at pc %u",
                   queue[i]->instruction->pc),
            format("LDS bytes [0x%x, 0x%x)", std::max(operation.lds_first, queue[i]->lds_first),
                   std::min(operation.lds_end, queue[i]->lds_end)),
            format("s_wait_%s %zu", counters[other].name,
                   counters[other].in_order ? queue.size() - 1 - i : size_t{0}));
  }
}

void Wave::wait(int counter, uint32_t outstanding) {
  const CounterRule& rule = workgroup.cluster.program.architecture->counters[counter];
  if (!rule.in_order && outstanding != 0) return;  // nothing is proven about any one of them
  while (queues_[counter].size() > outstanding) retire(counter);
}

void Wave::retire(int counter) {
  auto& queue = queues_[counter];
  AsyncOperation* operation = queue.front();
  queue.erase(queue.begin());
  for (unsigned i = operation->first; i < unsigned(operation->first + operation->count); ++i) {
    if (operation->file == Kind::kVector) {
      num_vector_pending_ -= vector_pending_[i];
      vector_pending_[i] = false;
    } else if (operation->file == Kind::kScalar) {
      num_scalar_pending_ -= scalar_pending_[i];
      scalar_pending_[i] = false;
      scalar_written_[i] = true;
    }
  }
  Cluster& cluster = workgroup.cluster;
  try {
    if (!operation->performed) operation->perform(*this);
    if (cluster.settings.detect_races && (operation->lds_reads || operation->lds_writes))
      record(*operation);
  } catch (Fault& fault) {
    if (fault.pc < 0) fault.pc = operation->instruction->pc;
    operation->recycle();
    throw;
  }
  cluster.program.architecture->retired(*this, counter, *operation);
  if (cluster.settings.trace)
    cluster.events.push_back({cluster.tick, operation->issue_tick, 0, uint32_t(index_in_cluster),
                              operation->instruction->pc, uint32_t(EventKind::kRetire)});
  operation->recycle();
}

void Wave::record(const AsyncOperation& operation) {
  static thread_local std::vector<Segment> segments;
  segments.clear();
  operation.lds_segments(segments);
  const Access access{uint32_t(index_in_cluster), uint32_t(index),
                      operation.issue_epoch,      epoch,
                      operation.instruction->pc,  operation.known.get()};
  RaceDetector& races = *workgroup.races;
  for (const Segment& segment : segments) {
    if (operation.lds_writes)
      races.write(access, segment.first, segment.bytes);
    else
      races.read(access, segment.first, segment.bytes);
  }
}

void Wave::drain() {
  for (int counter = 0; counter < kMaxCounters; ++counter)
    while (!queues_[counter].empty()) retire(counter);
}

void Wave::perform_some() {
  Cluster& cluster = workgroup.cluster;
  const size_t counters = cluster.program.architecture->counters.size();
  for (size_t counter = 0; counter < counters; ++counter) {
    auto& queue = queues_[counter];
    if (queue.empty()) continue;
    size_t amount = cluster.random(queue.size() + 1);
    for (AsyncOperation* operation : queue) {
      if (amount-- == 0) break;
      if (operation->performed) continue;
      operation->performed = true;
      operation->perform(*this);
    }
  }
}

// ------------------------------------------------------------------------------------------------------
// barriers

void Wave::signal(int barrier) {
  ++epoch;
  auto clock = std::make_shared<Clock>(*known);
  (*clock)[index_in_cluster] = epoch;
  known = clock;
  workgroup.cluster.arrive(*this, barrier);
}

void Wave::wait_barrier(int barrier) {
  if (!barrier_done[barrier]) {
    status = WaveStatus::kAtBarrier;
    waiting_for = barrier;
    return;
  }
  barrier_done[barrier] = false;
  auto clock = std::make_shared<Clock>(*known);
  for (size_t i = 0; i < clock->size(); ++i)
    (*clock)[i] = std::max((*clock)[i], (*barrier_clock[barrier])[i]);
  known = clock;
}

}  // namespace mxgemm::emulator
