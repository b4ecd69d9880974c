// Linear layers whose weight is cut over the ranks of a tensor-parallel group (Shoeybi et al.,
// arXiv:1909.08053, section 3). Weights are [out, in], as in PyTorch; a rank holds no more than
// its part.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/parameter.h"

namespace mt {

// What a layer keeps of its activations between forward and backward, and what it computes again
// (Korthikanti et al., arXiv:2205.05198, section 5).
enum class Recompute : std::uint8_t { kNone, kSelective, kFull };

// How the work of a layer is cut and summed; the defaults are those of one rank.
struct LayerLayout {
  // Norm, dropout and residual on this rank's slice of the positions (Korthikanti et al., section
  // 4.2): activations between the layers are [b, s/t, h].
  bool sequence_parallel = false;
  // Parts into which every sum is cut that a layout could cut, added in a balanced tree, so that
  // the layout changes no bit (--reduction tree). 1: sums as they come (--reduction fast).
  int virtual_shards = 1;
  // Of them, those of the samples of a step that this rank of the data axis sums: virtual_shards
  // over the ranks of that axis. 1 with --reduction fast.
  int sample_shards = 1;
  Recompute recompute = Recompute::kNone;
};

// What building a layer takes besides its sizes.
struct LayerSetup {
  const Communicator& tp;  // must outlive the layer
  Pool& pool;              // must outlive the layer
  Gradient gradient = Gradient::kZeroed;
  double init_std = 0.02;       // of the layer's weights; biases start at 0, gains at 1
  DType numbers = DType::kF32;  // of the parameters: see Parameter
  LayerLayout layout = {};
};

// The part [begin, end) of n things that this rank of tp owns: floor(i n / t) to
// floor((i + 1) n / t).
struct OwnedRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};
[[nodiscard]] OwnedRange owned_range(std::int64_t n, const Communicator& tp);

// A tensor of x's shape but for the last dimension; uninitialised.
[[nodiscard]] Tensor like_rows(const Tensor& x, std::int64_t last);

// y = x W^T + b with the rows of W cut: the first product of a block; pair with
// RowParallelLinear. Several names make one fused parameter, whose segments (query, key, value)
// are cut alike. Under sequence parallelism x and dx are slices [b, s/t, in] of the positions: see
// nn/positions.h.
class ColumnParallelLinear {
 public:
  struct Saved {
    Tensor x;  // what forward got: under sequence parallelism the slice, gathered again in backward
  };

  // `out` rows for each name, NAME.weight and NAME.bias. Throws UsageError unless tp.size()
  // divides out.
  ColumnParallelLinear(const std::vector<std::string>& names, std::int64_t in, std::int64_t out,
                       const LayerSetup& setup);

  // [b, s, in] -> [b, s, names * out/t]. saved null: inference. Local; under sequence parallelism
  // collective over tp (one all-gather of x).
  [[nodiscard]] Tensor forward(const Tensor& x, Saved* saved) const;
  // Also returns GELU(y) (tanh form), of y's shape.
  struct WithGelu {
    Tensor y, gelu;
  };
  [[nodiscard]] WithGelu forward_gelu(const Tensor& x, Saved* saved) const;
  // dy [b, s, names * out/t] -> dx [b, s, in]. Adds into the gradients. Collective over tp (one
  // all-reduce of dx; under sequence parallelism an all-gather of x and a reduce-scatter of dx).
  [[nodiscard]] Tensor backward(const Tensor& dy, const Saved& saved);

  void collect(std::vector<Parameter*>& out);

 private:
  // x, or all positions of it.
  [[nodiscard]] Tensor whole(const Tensor& x) const;
  // This rank's part of dx, before the sum over tp.
  void local_dx(const Tensor& dy, const Tensor& dx) const;

  const Communicator* tp_;
  bool sliced_;         // under sequence parallelism
  int shards_;          // virtual ones of this rank
  std::int64_t fused_;  // names
  Parameter weight_, bias_;
};

// y = x W^T + b + residual with the columns of W cut: x [b, s, in/t] is this rank's part.
// Under sequence parallelism y, residual and dy are slices [b, s/t, out] of the positions, and the
// gradient of the bias is the slice's.
class RowParallelLinear {
 public:
  struct Saved {
    Tensor x;  // [b, s, in/t]
  };

  // Throws UsageError unless tp.size() divides in.
  RowParallelLinear(const std::string& name, std::int64_t in, std::int64_t out,
                    const LayerSetup& setup);

  // [b, s, in/t] -> [b, s, out]. residual [b, s, out] may be undefined. Collective over tp (one
  // all-reduce of y, or one reduce-scatter).
  [[nodiscard]] Tensor forward(const Tensor& x, const Tensor& residual, Saved* saved) const;
  // dy [b, s, out], equal on all ranks -> dx [b, s, in/t]. Adds into the gradients. Local; under
  // sequence parallelism collective over tp (one all-gather of dy).
  [[nodiscard]] Tensor backward(const Tensor& dy, const Saved& saved);

  void collect(std::vector<Parameter*>& out);

 private:
  const Communicator* tp_;
  bool sliced_;       // under sequence parallelism
  int shards_;        // virtual ones of this rank
  bool added_after_;  // bias and residual after the sum over tp
  Parameter weight_, bias_;
};

}  // namespace mt
