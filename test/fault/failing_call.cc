// A library for LD_PRELOAD that fails system calls of the program from the start of main on: the
// N-th of a class over all threads, or the process is killed before it. The kernel hands each call
// of the class over by SIGSYS (seccomp), also those that libraries make; the others run at full
// speed, but fsync and fdatasync are not made at all: no power is lost here, and they would take
// most of the time. (strace counts for each thread alone, and the loader's calls with main's.)
//   MT_CALL=NAME,...    the class, of the names below
//   MT_CALL_WHEN=N      which one (0 or absent: none)
//   MT_CALL_ERROR=E     the number of the error it fails with; absent: SIGKILL before it
//   MT_CALL_LOG=F       F gets a line "NAME SUBJECT" for the call that failed
//   MT_CALL_COUNT=F     at the end F gets a line "NAME COUNT" for each name of the class
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef __x86_64__
#error "the registers of a system call are those of x86-64"
#endif

// The only instruction whose calls of the class the kernel lets pass.
extern "C" long mt_plain_call(long number, long a, long b, long c, long d, long e, long f);
extern "C" const char mt_plain_call_end[];
asm(R"(
.text
.globl mt_plain_call
.globl mt_plain_call_end
mt_plain_call:
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
mt_plain_call_end:
  ret
)");

namespace {

// What a call is about: a path, a path under a directory's descriptor, a descriptor, nothing.
enum class About { kPath, kPathAt, kDescriptor, kMemory };

struct Call {
  const char* name;
  long number;
  About about;
};

constexpr Call kCalls[] = {
    {"write", SYS_write, About::kDescriptor},
    {"pwrite64", SYS_pwrite64, About::kDescriptor},
    {"fsync", SYS_fsync, About::kDescriptor},
    {"fdatasync", SYS_fdatasync, About::kDescriptor},
    {"ftruncate", SYS_ftruncate, About::kDescriptor},
    {"fallocate", SYS_fallocate, About::kDescriptor},
    {"close", SYS_close, About::kDescriptor},
    {"read", SYS_read, About::kDescriptor},
    {"pread64", SYS_pread64, About::kDescriptor},
    {"getdents64", SYS_getdents64, About::kDescriptor},
    {"flock", SYS_flock, About::kDescriptor},
    {"newfstatat", SYS_newfstatat, About::kPathAt},
    {"openat", SYS_openat, About::kPathAt},
    {"unlinkat", SYS_unlinkat, About::kPathAt},
    {"renameat2", SYS_renameat2, About::kPathAt},
    {"open", SYS_open, About::kPath},
    {"mkdir", SYS_mkdir, About::kPath},
    {"rename", SYS_rename, About::kPath},
    {"unlink", SYS_unlink, About::kPath},
    {"rmdir", SYS_rmdir, About::kPath},
    {"symlink", SYS_symlink, About::kPath},
    {"link", SYS_link, About::kPath},
    {"mmap", SYS_mmap, About::kMemory},
};
constexpr std::size_t kCallCount = sizeof kCalls / sizeof kCalls[0];
constexpr int kFarDescriptor = 500;  // from those that the program gets

bool wanted[kCallCount];
std::atomic<long> counted[kCallCount];
std::atomic<long> counted_together{0};
long fail_at = 0;
int fail_error = 0;
int log_file = -1;
const char* count_file = nullptr;

std::size_t put(char* line, std::size_t at, std::size_t size, const char* text) {
  while (*text != '\0' && at + 1 < size) line[at++] = *text++;
  line[at] = '\0';
  return at;
}

// The path of a descriptor is appended.
std::size_t put_descriptor(char* line, std::size_t at, std::size_t size, long fd) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%ld", fd);
  const long length =
      mt_plain_call(SYS_readlink, reinterpret_cast<long>(link), reinterpret_cast<long>(line + at),
                    static_cast<long>(size - at - 1), 0, 0, 0);
  if (length <= 0) return put(line, at, size, "-");
  line[at + static_cast<std::size_t>(length)] = '\0';
  return at + static_cast<std::size_t>(length);
}

void log_call(const Call& call, const greg_t* registers) {
  if (log_file < 0) return;
  char line[1024];
  std::size_t at = put(line, 0, sizeof line, call.name);
  at = put(line, at, sizeof line, " ");
  const auto* const first = reinterpret_cast<const char*>(registers[REG_RDI]);
  const auto* const second = reinterpret_cast<const char*>(registers[REG_RSI]);
  const int fd = static_cast<int>(registers[REG_RDI]);
  switch (call.about) {
    case About::kPath:
      at = put(line, at, sizeof line, first);
      break;
    case About::kDescriptor:
      at = put_descriptor(line, at, sizeof line, fd);
      break;
    case About::kMemory:
      at = put(line, at, sizeof line, "memory");
      break;
    case About::kPathAt: {
      const bool relative = second != nullptr && *second != '\0' && *second != '/';
      if (fd != AT_FDCWD && (relative || second == nullptr || *second == '\0')) {
        at = put_descriptor(line, at, sizeof line, fd);
        if (relative) at = put(line, at, sizeof line, "/");
      }
      if (second != nullptr) at = put(line, at, sizeof line, second);
    }
  }
  at = put(line, at, sizeof line, "\n");
  mt_plain_call(SYS_write, log_file, reinterpret_cast<long>(line), static_cast<long>(at), 0, 0, 0);
}

void on_call(int, siginfo_t* info, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  for (std::size_t i = 0; i < kCallCount; ++i) {
    if (kCalls[i].number != info->si_syscall) continue;
    ++counted[i];
    if (++counted_together != fail_at) break;
    log_call(kCalls[i], registers);
    if (fail_error == 0) {
      mt_plain_call(SYS_kill, mt_plain_call(SYS_getpid, 0, 0, 0, 0, 0, 0), SIGKILL, 0, 0, 0, 0);
    }
    registers[REG_RAX] = -fail_error;
    return;
  }
  if (info->si_syscall == SYS_fsync || info->si_syscall == SYS_fdatasync) {
    registers[REG_RAX] = 0;
    return;
  }
  registers[REG_RAX] =
      mt_plain_call(info->si_syscall, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                    registers[REG_R10], registers[REG_R8], registers[REG_R9]);
}

[[noreturn]] void give_up(const char* why) {
  static_cast<void>(::dprintf(2, "failing_call: %s\n", why));
  ::_exit(99);
}

void choose_class(const char* names) {
  while (*names != '\0') {
    const std::size_t length = std::strcspn(names, ",");
    bool found = false;
    for (std::size_t i = 0; i < kCallCount; ++i) {
      if (std::strlen(kCalls[i].name) != length || std::strncmp(kCalls[i].name, names, length) != 0)
        continue;
      wanted[i] = found = true;
    }
    if (!found) give_up("MT_CALL: no such call");
    names += length + (names[length] == ',' ? 1 : 0);
  }
}

// The calls of the class, made elsewhere than in mt_plain_call, become signals.
void hand_over_calls() {
  sock_filter program[2 * kCallCount + 12];
  unsigned short n = 0;
  const auto add = [&](unsigned code, std::uint32_t k, unsigned char yes, unsigned char no) {
    program[n++] = sock_filter{static_cast<unsigned short>(code), yes, no, k};
  };
  const auto address = reinterpret_cast<std::uint64_t>(&mt_plain_call_end);
  constexpr auto kPointer = static_cast<std::uint32_t>(offsetof(seccomp_data, instruction_pointer));
  add(BPF_LD | BPF_W | BPF_ABS, kPointer, 0, 0);
  add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(address), 0, 3);
  add(BPF_LD | BPF_W | BPF_ABS, kPointer + 4, 0, 0);
  add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(address >> 32U), 0, 1);
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offsetof(seccomp_data, nr)), 0, 0);
  for (std::size_t i = 0; i < kCallCount; ++i) {
    if (!wanted[i]) continue;
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(kCalls[i].number), 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_TRAP, 0, 0);
  }
  for (const int number : {SYS_fsync, SYS_fdatasync}) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO, 0, 0);
  }
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  const sock_fprog filter{n, program};
  struct sigaction action = {};
  action.sa_sigaction = on_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  if (::sigaction(SIGSYS, &action, nullptr) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) {
    give_up("the kernel does not hand calls over (seccomp)");
  }
}

void write_counts() {
  if (count_file == nullptr) return;
  fail_at = 0;
  long counts[kCallCount];  // before the calls that are made here
  for (std::size_t i = 0; i < kCallCount; ++i) counts[i] = counted[i].load();
  const int fd = ::open(count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  for (std::size_t i = 0; i < kCallCount; ++i) {
    if (wanted[i]) static_cast<void>(::dprintf(fd, "%s %ld\n", kCalls[i].name, counts[i]));
  }
  ::close(fd);
}

int (*real_main)(int, char**, char**) = nullptr;

int handed_main(int argc, char** argv, char** environment) {
  if (const char* text = std::getenv("MT_CALL")) choose_class(text);
  if (const char* text = std::getenv("MT_CALL_WHEN")) fail_at = std::atol(text);
  if (const char* text = std::getenv("MT_CALL_ERROR")) fail_error = std::atoi(text);
  if (const char* name = std::getenv("MT_CALL_LOG")) {
    const int fd = ::open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    log_file = ::fcntl(fd, F_DUPFD_CLOEXEC, kFarDescriptor);
    ::close(fd);
    if (log_file < 0) give_up("MT_CALL_LOG cannot be written");
  }
  count_file = std::getenv("MT_CALL_COUNT");
  std::atexit(write_counts);
  hand_over_calls();
  return real_main(argc, argv, environment);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// A thread that blocks every signal must still let this one through.
int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  using Mask = int (*)(int, const sigset_t*, sigset_t*);
  static const auto mask = reinterpret_cast<Mask>(::dlsym(RTLD_NEXT, "pthread_sigmask"));
  if (set == nullptr || how == SIG_UNBLOCK) return mask(how, set, old);
  sigset_t without = *set;
  ::sigdelset(&without, SIGSYS);
  return mask(how, &without, old);
}

// glibc's start of a program: main is taken over, to know when it begins.
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(),
                      void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  using Start =
      int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(handed_main, argc, argv, init, fini, rtld_fini, stack_end);
}

}  // extern "C"
#pragma GCC visibility pop
