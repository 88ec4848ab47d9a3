#pragma once

namespace phalanx {

/// Tells the core that this thread spins: about 30 ns in which the other one of it runs faster.
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yield is no wait on most of these cores
#endif
}

}  // namespace phalanx
