// Who may touch which LDS byte when: vector clocks over waves, barriers as joins, every
// asynchronous access an interval.
//
// A wave's epoch counts its barrier arrivals. `known[u]` of a wave is the number of u's epochs that
// have been published to it by a barrier. An access lasts from its issue to the wait that proves it
// complete; two accesses of different waves to one byte, at least one a write, are ordered only if
// the later one was issued when the earlier one's completion was known: `known_at_issue(later)[u] >
// epoch_at_completion(earlier)`. The check is made when the later access is proven complete, so it
// finds the race even when the values happen to agree, in every timing mode.
//
// Two accesses of one wave by different units (LDS against a tensor transfer) are checked at issue,
// see Wave.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace mxgemm::emulator {

using Clock = std::vector<uint32_t>;               // per wave of the cluster
using SharedClock = std::shared_ptr<const Clock>;  // replaced, never changed

struct Access {
  uint32_t wave;  // in the cluster
  uint32_t
      reader_bit;  // of the wave among those that can read this LDS: its number in its workgroup
  uint32_t issue_epoch;
  uint32_t epoch;  // at completion
  uint32_t pc;
  const Clock* known;  // at issue
};

class RaceDetector {
 public:
  RaceDetector(uint32_t bytes, uint32_t first_wave);

  void read(const Access& access, uint32_t first_byte, uint32_t bytes);
  void write(const Access& access, uint32_t first_byte, uint32_t bytes);

 private:
  static constexpr uint32_t kNobody = 0xFFFFFFFF;

  struct Granule {
    uint32_t writer = kNobody;
    uint32_t write_epoch = 0;
    uint32_t write_issue_epoch = 0;
    uint32_t write_pc = 0;
    uint32_t readers =
        0;  // since the last write, all in `read_epoch` but for those in `older_readers_`
    uint32_t read_epoch = 0;
    uint32_t read_issue_epoch = 0;
    uint32_t read_pc = 0;
  };
  struct Reader {
    uint32_t wave_bit, epoch;
  };

  void refine_to_bytes();
  void read_one(const Access& access, Granule& granule, uint32_t index);
  void keep_older(uint32_t index, uint32_t wave_bit, uint32_t epoch);
  void write_one(const Access& access, Granule& granule, uint32_t index);
  bool published(const Access& later, uint32_t wave_bit, uint32_t epoch) const;
  [[noreturn]] void fail(const Access& later, bool later_writes, const Granule& granule,
                         uint32_t index, bool against_write, uint32_t other_wave) const;

  uint32_t first_wave_;  // of this workgroup, in the cluster
  uint32_t shift_ = 2;  // log2 bytes of a granule; becomes 0 with the first access that is not made
                        // of whole dwords
  std::vector<Granule> granules_;
  std::unordered_map<uint32_t, std::vector<Reader>> older_readers_;
};

}  // namespace mxgemm::emulator
