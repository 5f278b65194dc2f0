#include "core/race.h"

#include "core/fault.h"

namespace mxgemm::emulator {

RaceDetector::RaceDetector(uint32_t bytes, uint32_t first_wave)
    : first_wave_(first_wave), granules_((bytes + 3) / 4) {}

void RaceDetector::refine_to_bytes() {
  std::vector<Granule> fine(granules_.size() * 4);
  for (size_t i = 0; i < fine.size(); ++i) fine[i] = granules_[i / 4];
  granules_ = std::move(fine);
  std::unordered_map<uint32_t, std::vector<Reader>> readers;
  for (const auto& [index, list] : older_readers_)
    for (uint32_t i = 0; i < 4; ++i) readers[index * 4 + i] = list;
  older_readers_ = std::move(readers);
  shift_ = 0;
}

bool RaceDetector::published(const Access& later, uint32_t wave_bit, uint32_t epoch) const {
  return (*later.known)[first_wave_ + wave_bit] > epoch;
}

void RaceDetector::read(const Access& access, uint32_t first_byte, uint32_t bytes) {
  if (shift_ && ((first_byte | bytes) & 3)) refine_to_bytes();
  for (uint32_t i = first_byte >> shift_, end = (first_byte + bytes) >> shift_; i < end; ++i)
    read_one(access, granules_[i], i);
}

void RaceDetector::write(const Access& access, uint32_t first_byte, uint32_t bytes) {
  if (shift_ && ((first_byte | bytes) & 3)) refine_to_bytes();
  for (uint32_t i = first_byte >> shift_, end = (first_byte + bytes) >> shift_; i < end; ++i)
    write_one(access, granules_[i], i);
}

void RaceDetector::read_one(const Access& access, Granule& granule, uint32_t index) {
  if (granule.writer != access.wave) {
    if (granule.writer == kNobody)
      throw Fault("uninitialised", "LDS read before anything was written there",
                  format("LDS bytes [0x%x, 0x%x)", index << shift_, (index + 1) << shift_),
                  "a write");
    if ((*access.known)[granule.writer] <= granule.write_epoch)
      fail(access, false, granule, index, true, granule.writer);
  }
  const uint32_t bit = 1u << access.reader_bit;
  if (granule.readers == 0 || granule.readers == bit) {
    granule.readers = bit;
  } else if (granule.read_epoch == access.epoch) {
    granule.readers |= bit;
  } else {
    // An earlier reader whose completion this wave already knew of is covered by this one: whoever
    // is ordered after this read is ordered after that one. The rest is kept apart, exactly.
    for (uint32_t rest = granule.readers & ~bit; rest; rest &= rest - 1) {
      uint32_t other = __builtin_ctz(rest);
      if (!published(access, other, granule.read_epoch))
        keep_older(index, other, granule.read_epoch);
    }
    granule.readers = bit;
  }
  granule.read_epoch = access.epoch;
  granule.read_issue_epoch = access.issue_epoch;
  granule.read_pc = access.pc;
}

void RaceDetector::keep_older(uint32_t index, uint32_t wave_bit, uint32_t epoch) {
  std::vector<Reader>& readers = older_readers_[index];
  for (Reader& reader : readers)
    if (reader.wave_bit == wave_bit) {
      reader.epoch = epoch;
      return;
    }
  readers.push_back({wave_bit, epoch});
}

void RaceDetector::write_one(const Access& access, Granule& granule, uint32_t index) {
  if (granule.writer != kNobody && granule.writer != access.wave &&
      (*access.known)[granule.writer] <= granule.write_epoch)
    fail(access, true, granule, index, true, granule.writer);
  for (uint32_t rest = granule.readers; rest; rest &= rest - 1) {
    uint32_t other = __builtin_ctz(rest);
    if (first_wave_ + other != access.wave && !published(access, other, granule.read_epoch))
      fail(access, true, granule, index, false, first_wave_ + other);
  }
  if (!older_readers_.empty()) {
    if (auto found = older_readers_.find(index); found != older_readers_.end()) {
      for (const Reader& reader : found->second)
        if (first_wave_ + reader.wave_bit != access.wave &&
            !published(access, reader.wave_bit, reader.epoch))
          fail(access, true, granule, index, false, first_wave_ + reader.wave_bit);
      older_readers_.erase(found);
    }
  }
  granule.writer = access.wave;
  granule.write_epoch = access.epoch;
  granule.write_issue_epoch = access.issue_epoch;
  granule.write_pc = access.pc;
  granule.readers = 0;
}

void RaceDetector::fail(const Access& later, bool later_writes, const Granule& granule,
                        uint32_t index, bool against_write, uint32_t other_wave) const {
  const uint32_t other_issue = against_write ? granule.write_issue_epoch : granule.read_issue_epoch;
  const uint32_t other_pc = against_write ? granule.write_pc : granule.read_pc;
  // A barrier after the issue was passed, but the access was not proven complete before it: the
  // wait is what is missing.
  const bool barrier_seen = (*later.known)[other_wave] > other_issue;
  throw Fault(
      "race",
      format("%s of LDS is not ordered after the %s by wave %u at pc %u",
             later_writes ? "write" : "read", against_write ? "write" : "read", other_wave,
             other_pc),
      format("LDS bytes [0x%x, 0x%x)", index << shift_, (index + 1) << shift_),
      barrier_seen
          ? format("a wait for the access at pc %u before the barrier that follows it", other_pc)
          : format("a barrier between the access at pc %u and this one", other_pc));
}

}  // namespace mxgemm::emulator
