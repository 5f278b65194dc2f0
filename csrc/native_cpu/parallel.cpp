#include "parallel.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace mxgemm {
namespace {

// The entry point that every OpenMP runtime for GCC-compiled code exports (libgomp, libomp and
// libiomp5 alike).
using GompParallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct Runtime {
  GompParallel parallel = nullptr;
  std::string name = "std::thread";
};

bool is_openmp(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* file = slash ? slash + 1 : path;
  return std::strncmp(file, "libgomp", 7) == 0 || std::strncmp(file, "libiomp5", 8) == 0 ||
         std::strncmp(file, "libomp", 6) == 0;
}

int consider(dl_phdr_info* info, size_t, void* found) {
  auto& best = *static_cast<std::string*>(found);
  if (!info->dlpi_name || !is_openmp(info->dlpi_name)) return 0;
  // Several may be loaded; the one in a folder of torch is torch's.
  const bool torch = std::strstr(info->dlpi_name, "torch") != nullptr;
  if (best.empty() || (torch && best.find("torch") == std::string::npos)) best = info->dlpi_name;
  return 0;
}

// A fork's child has none of the runtime's threads, for which libgomp would wait forever.
std::atomic<bool> in_forked_child{false};

// Two pools of threads that spin while they wait would fight for the cores, so we join the pool of
// the OpenMP runtime that torch has loaded instead of linking one of our own.
Runtime find_runtime() {
  Runtime runtime;
  std::string path;
  dl_iterate_phdr(consider, &path);
  if (path.empty()) return runtime;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!library) return runtime;
  runtime.parallel = reinterpret_cast<GompParallel>(dlsym(library, "GOMP_parallel"));
  if (runtime.parallel) runtime.name = path;
  pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });
  return runtime;
}

const Runtime& runtime() {
  static const Runtime found = find_runtime();
  return found;
}

struct Team {
  int64_t count;
  Task task;
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<int> slots{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error{};
};

// Whichever threads come take the next task until none is left, so that a busy core delays nobody.
void work(void* data) {
  auto& team = *static_cast<Team*>(data);
  const int slot = team.slots.fetch_add(1, std::memory_order_relaxed);
  try {
    while (!team.failed.load(std::memory_order_relaxed)) {
      const int64_t task = team.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= team.count) return;
      team.task(team.context, task, slot);
    }
  } catch (...) {
    if (!team.failed.exchange(true)) team.error = std::current_exception();
  }
}

}  // namespace

void run_tasks(int64_t count, int threads, Task task, void* context) {
  Team team{count, task, context};
  if (threads > count) threads = static_cast<int>(count);
  if (threads <= 1) {
    work(&team);
  } else if (runtime().parallel && !in_forked_child) {
    runtime().parallel(work, &team, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back(work, &team);
    } catch (const std::system_error&) {
      // Fewer threads do the same work.
    }
    work(&team);
    for (auto& other : others) other.join();
  }
  if (team.error) std::rethrow_exception(team.error);
}

const char* thread_provider() { return runtime().name.c_str(); }

}  // namespace mxgemm
