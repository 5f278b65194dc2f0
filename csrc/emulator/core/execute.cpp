#include "core/execute.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace mxgemm::emulator {

LaunchResult execute(const Program& program, Memory& memory, const LaunchSettings& settings,
                     const Hooks* hooks, const std::vector<std::array<uint32_t, 3>>& clusters,
                     int threads) {
  LaunchResult result;
  result.counters.executed.resize(program.code.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex lock;
  size_t fault_index = clusters.size();
  std::exception_ptr other;
  // One cluster alone has nobody to race with.
  std::unique_ptr<GlobalRaces> races;
  if (settings.detect_races && clusters.size() > 1) races = std::make_unique<GlobalRaces>(memory);

  const auto work = [&] {
    for (;;) {
      const size_t index = next.fetch_add(1);
      if (index >= clusters.size() || stop) return;
      try {
        Cluster cluster(program, memory, settings, hooks, clusters[index], uint32_t(index),
                        races.get());
        cluster.run(stop);
        std::lock_guard<std::mutex> guard(lock);
        result.counters.add(cluster.counters);
        if (settings.trace) {
          for (Event& event : cluster.events) event.workgroup = uint32_t(index);
          result.events.insert(result.events.end(), cluster.events.begin(), cluster.events.end());
        }
      } catch (const Fault& fault) {
        std::lock_guard<std::mutex> guard(lock);
        if (index < fault_index) {
          fault_index = index;
          result.fault = fault;
        }
        stop = true;
      } catch (...) {  // of a hook, or out of memory
        std::lock_guard<std::mutex> guard(lock);
        if (!other) other = std::current_exception();
        stop = true;
      }
    }
  };

  threads = std::max(1, std::min<int>(threads, int(clusters.size())));
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  if (other) std::rethrow_exception(other);
  return result;
}

}  // namespace mxgemm::emulator
