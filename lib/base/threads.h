// The threads of a process: one pool that waits for work without burning the core. A thread that
// waits spins for some tens of microseconds and then sleeps, and a thread that is late is not
// waited for, so that a job whose cores are shared with others keeps its pace (the spinning
// barriers of OpenMP's library cost 10 to 100 times there).
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

namespace mt {

// How many threads parallel work may use, the caller included: 1 until set. 1 <= count.
void set_threads(int count);
[[nodiscard]] int threads();

// Calls body(context, part, thread) once for each part of [0, parts), on the calling thread and up
// to most - 1 others; returns when all are done. Whoever is free takes the next part; thread is in
// [0, min(most, threads())), and no two bodies that run at one time have the same. What a body
// throws is thrown here when all are done; parts that nobody has begun by then are left. Work that
// another thread of the process starts in the meantime, or a body itself, runs on its own thread
// alone.
using PartBody = void (*)(const void* context, std::int64_t part, int thread);
void run_parts(std::int64_t parts, int most, PartBody body, const void* context);

// The same for a body that may throw: a part that does keeps those not yet begun from beginning,
// and the exception of the first such part is thrown to the caller when all have ended.
void run_parts_or_throw(std::int64_t parts, int most,
                        const std::function<void(std::int64_t)>& body);

// A thread of its own beside the pool, for work that mostly waits. It leaves signals to the first
// thread of the process and runs run_parts() with most = 1, so that the pool stays with its owner.
// body must not throw. Throws std::system_error if the system gives no thread.
[[nodiscard]] std::thread start_thread(std::function<void()> body);

}  // namespace mt
