// Runs tasks on the threads that the calling program already has.
#pragma once
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

// Name of what provides the threads: the file of the OpenMP runtime in use, or "std::thread".
const char* thread_provider();

}  // namespace mxgemm
