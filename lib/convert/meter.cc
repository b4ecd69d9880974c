#include "convert/meter.h"

#include <array>
#include <cmath>
#include <iomanip>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace mt {

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  TextStream out;
  out << std::fixed
      << std::setprecision(unit == 0 || bytes >= 99.95 ? 0
                           : bytes >= 9.995            ? 1
                                                       : 2)
      << bytes << ' ' << kUnits.at(unit);
  return out.str();
}

Meter::Meter(std::string what, std::uint64_t total, std::function<int()> stop)
    : what_(std::move(what)), total_(total), stop_(std::move(stop)) {}

Meter::~Meter() {
  if (!shown_) return;
  try {
    progress("");
  } catch (const std::exception&) {  // no memory for the end of a line
  }
}

double Meter::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void Meter::add(std::uint64_t bytes) {
  done_ += bytes;
  if (const int signal = stop_ ? stop_() : 0; signal != 0) {
    throw Error(static_cast<ExitStatus>(128 + signal),
                cat("stopped by signal ", signal, " after ", bytes_text(static_cast<double>(done_)),
                    " of ", bytes_text(static_cast<double>(total_))));
  }
  const double passed = seconds();
  if (passed < 0.5) return;  // soon done, most likely
  const double rate = static_cast<double>(done_) / passed;
  const auto left = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(total_ > done_ ? total_ - done_ : 0) / rate));
  progress(cat(what_, ": ", bytes_text(static_cast<double>(done_)), " of ",
               bytes_text(static_cast<double>(total_)), ", ", bytes_text(rate), "/s, ", left,
               " s left"));
  shown_ = true;
}

}  // namespace mt
