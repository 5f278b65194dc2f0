// Runs tasks on the threads that the calling program already has.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mxgemm {

// A task: its number and the slot (0 .. threads - 1) of the thread that runs it, for scratch
// memory.
using Task = void (*)(void* context, int64_t task, int slot);

// Runs tasks 0 .. count - 1, each once, on at most `threads` threads; returns when all are done.
void run_tasks(int64_t count, int threads, Task task, void* context);

template <class F>
void parallel_for(int64_t count, int threads, F&& body) {
  run_tasks(
      count, threads,
      [](void* context, int64_t task, int slot) { (*static_cast<F*>(context))(task, slot); },
      &body);
}

// Tasks for each thread at least, where there is work for as many: a slow core delays nobody.
constexpr int kTasksPerThread = 4;

// How many of `pieces` neighbours in memory one task takes, at most `most`: where a task begins,
// nothing has been asked for ahead.
inline int64_t pieces_per_task(int64_t pieces, int threads, int64_t most) {
  return std::clamp<int64_t>(pieces / (int64_t{kTasksPerThread} * std::max(threads, 1)), 1, most);
}

// Name of what provides the threads: the file of the OpenMP runtime in use, or "std::thread".
const char* thread_provider();

}  // namespace mxgemm
