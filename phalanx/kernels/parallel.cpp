#include "phalanx/kernels/parallel.h"

#include <algorithm>

// LibTorch's OpenMP runtime, through its entry points: clang's -fopenmp would bring a second
// runtime into the process, and LibTorch's own at::parallel_for is serial without the flag.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();
int omp_in_parallel();
int omp_get_max_threads();
}

namespace phalanx {
namespace {

struct Work {
  const std::function<void(int64_t, int64_t)>* body;
  int64_t begin, end;
};

void run_part(void* data) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
  const int64_t count = work.end - work.begin;
  const int64_t first = work.begin + count * part / parts;
  const int64_t last = work.begin + count * (part + 1) / parts;
  if (first < last) (*work.body)(first, last);
}

}  // namespace

int kernel_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body) {
  if (begin >= end) return;
  const int64_t parts =
      std::min<int64_t>(kernel_threads(), (end - begin) / std::max<int64_t>(grain, 1));
  if (parts <= 1) return body(begin, end);
  Work work{&body, begin, end};
  GOMP_parallel(run_part, &work, unsigned(parts), 0);
}

}  // namespace phalanx
