#include "optim/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "comm/texts.h"
#include "optim/zero1.h"
#include "tensor/ops.h"

namespace mt {
namespace {

// "" if all are finite.
std::string name_not_finite(const std::vector<CountedGradient>& gradients) {
  for (const auto& [segment, values, weights] : gradients) {
    const std::int64_t element = find_not_finite(values);
    if (element < 0) continue;
    return cat("the gradient of ", segment->name, " is not finite (element ", element, " of ",
               shape_text(values.shape()), ")");
  }
  return "";
}

// What the first rank says that has something to say, on every rank. Collective.
std::string agree_on(const std::string& text, const Communicator& group) {
  double first = text.empty() ? -group.size() : -group.rank();
  group.all_reduce(&first, 1, ReduceOp::kMax);
  const int speaker = -static_cast<int>(first);
  return speaker < group.size() ? broadcast_text(group, text, speaker) : "";
}

}  // namespace

std::vector<CountedGradient> counted_gradients(const std::vector<Parameter*>& parameters,
                                               const std::vector<RowRange>& slices,
                                               const NormShare& share) {
  std::vector<CountedGradient> counted;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    if (parameter.copy || (!share.first_of_data && !is_cut(parameter, slices[i]))) continue;
    for (const Segment& segment : parameter.segments) {
      if (!share.first_of_tensor && segment.extent == segment.global_shape) continue;
      const std::int64_t begin = std::max(slices[i].begin, segment.row);
      const std::int64_t end = std::min(slices[i].end, segment.row + segment.extent[0]);
      if (begin < end) {
        counted.push_back(
            {&segment, parameter.grad.rows(begin, end), parameter.value.rows(begin, end)});
      }
    }
  }
  return counted;
}

void sum_over(const Communicator& group, SquareSum& sum) {
  SquareSum::Parts parts = sum.parts();
  group.all_reduce(parts.data(), std::int64_t{parts.size()}, ReduceOp::kSum);
  sum = SquareSum::from_parts(parts);
}

double gradient_norm(const std::vector<Parameter*>& parameters, const std::vector<RowRange>& slices,
                     const NormShare& share) {
  MT_ASSERT(!parameters.empty() && slices.size() == parameters.size());
  const auto counted = counted_gradients(parameters, slices, share);
  SquareSum sum;
  for (const CountedGradient& gradient : counted) sum.add(gradient.values);
  sum_over(share.group, sum);
  const double squares = sum.value();
  if (!std::isfinite(squares)) {
    std::string text = name_not_finite(counted);
    if (!text.empty() && !share.place.empty()) text += cat(" on ", share.place);
    throw NumericError(agree_on(text, share.group));
  }
  return std::sqrt(squares);
}

double gradient_norm(const std::vector<Parameter*>& parameters) {
  const auto single = make_single_communicator();
  return gradient_norm(parameters, all_rows(parameters), {.group = *single});
}

}  // namespace mt
