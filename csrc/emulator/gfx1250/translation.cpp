#include "gfx1250/translation.h"

#include <algorithm>

#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

bool holds(const std::vector<RegisterRange>& ranges, unsigned number) {
  return std::any_of(ranges.begin(), ranges.end(), [&](RegisterRange r) {
    return number >= r.first && number < unsigned(r.first + r.count);
  });
}

bool reads(const Instruction& instruction, Kind file, unsigned number) {
  if (file == Kind::kVector) return holds(instruction.vector_reads, number);
  return number == kExec || holds(instruction.scalar_reads, number);
}

}  // namespace

void PendingTranslations::enter_group(bool scalar) {
  if (scalar_ != scalar) drain();
  scalar_ = scalar;
}

void PendingTranslations::protect(const Instruction& instruction) {
  for (RegisterRange r : instruction.vector_reads)
    for (unsigned i = r.first; i < unsigned(r.first + r.count); ++i) vectors_[i] = true;
  for (RegisterRange r : instruction.scalar_reads)
    for (unsigned i = r.first; i < unsigned(r.first + r.count); ++i) scalars_[i] = i != kNull;
  if (!scalar_) scalars_[kExec] = true;
}

void PendingTranslations::add(const Instruction& instruction, uint64_t sequence) {
  pending_.push_back({&instruction, sequence});
  protect(instruction);
}

void PendingTranslations::check_overwrite(const Instruction& instruction) const {
  if (pending_.empty()) return;
  for (RegisterRange r : instruction.vector_writes)
    for (unsigned i = r.first; i < unsigned(r.first + r.count); ++i)
      if (vectors_[i]) fail(Kind::kVector, i);
  for (RegisterRange r : instruction.scalar_writes)
    for (unsigned i = r.first; i < unsigned(r.first + r.count); ++i)
      if (scalars_[i]) fail(Kind::kScalar, i);
  if (instruction.operation->writes_exec && scalars_[kExec]) fail(Kind::kScalar, kExec);
}

void PendingTranslations::fail(Kind file, unsigned number) const {
  const auto youngest = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& one) {
    return reads(*one.instruction, file, number);
  });
  const size_t younger = scalar_ ? 0 : size_t(youngest - pending_.rbegin());
  throw Fault("replay",
              format("overwrite of a register that the memory instruction at pc %u reads again if "
                     "its address must be translated again",
                     youngest->instruction->pc),
              register_name(file == Kind::kVector ? 'v' : 's', number, 1),
              format("s_wait_xcnt %zu", younger));
}

void PendingTranslations::wait(uint32_t outstanding) {
  if (pending_.size() <= outstanding || (scalar_ && outstanding != 0)) return;
  release(pending_.size() - outstanding);
}

void PendingTranslations::complete_scalar() {
  if (scalar_) drain();
}

void PendingTranslations::complete_vector(uint64_t sequence) {
  if (scalar_) return;
  size_t count = 0;
  while (count < pending_.size() && pending_[count].sequence <= sequence) ++count;
  if (count) release(count);
}

void PendingTranslations::drain() {
  if (!pending_.empty()) release(pending_.size());
}

void PendingTranslations::release(size_t count) {
  pending_.erase(pending_.begin(), pending_.begin() + std::ptrdiff_t(count));
  vectors_.reset();
  scalars_.reset();
  for (const Pending& one : pending_) protect(*one.instruction);
}

}  // namespace mxgemm::emulator::gfx1250
