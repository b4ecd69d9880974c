#include "data/preprocess.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "io/json_lines.h"
#include "io/line_reader.h"

namespace mt {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{256} << 10;
constexpr std::int64_t kReports = 100;  // bad lines that are logged one by one

// Lines of one input, and what became of them.
struct Batch {
  std::string input;  // its name
  std::string bytes;  // the lines one after the other, with padding behind the last
  std::vector<std::size_t> ends;
  std::uint64_t first_line = 0;
  bool plain = false;          // `bytes` are one document, as it is
  bool last = false;           // of its input
  std::uint64_t position = 0;  // stored bytes of all inputs up to its end

  struct Line {
    JsonLine kind = JsonLine::kBlank;
    std::uint64_t replaced = 0;
    std::string reason;
    std::vector<std::string> keys;
    std::size_t tokens_end = 0;  // of its document in `tokens`
    std::size_t text_bytes = 0;
    bool has_set = false;
    bool begins_like_json = false;
    std::string set;
  };
  std::vector<Line> lines;
  std::vector<std::int32_t> tokens;
  bool done = false;
  std::exception_ptr error;
};

// What one thread needs to turn lines into ids.
class BatchEncoder {
 public:
  BatchEncoder(const PreprocessOptions& options, const Tokenizer& tokenizer)
      : append_eod_(options.append_eod),
        tokenizer_(tokenizer.clone()),
        parser_(options.json_key, replace_invalid_utf8) {}

  void encode(Batch& batch) {
    batch.lines.reserve(batch.ends.size());
    if (batch.plain) {
      encode_plain(batch);
    } else {
      encode_lines(batch);
    }
    std::string().swap(batch.bytes);
  }

 private:
  void encode_plain(Batch& batch) {
    document_.text.clear();
    Batch::Line& out = batch.lines.emplace_back();
    out.kind = JsonLine::kDocument;
    out.replaced = replace_invalid_utf8(batch.bytes, document_.text);
    document_.has_set = false;
    add_document(batch, out);
    out.tokens_end = batch.tokens.size();
    if (document_.text.capacity() > kKeepText) std::string().swap(document_.text);
  }

  void encode_lines(Batch& batch) {
    std::size_t begin = 0;
    for (const std::size_t end : batch.ends) {
      const std::string_view line = std::string_view(batch.bytes).substr(begin, end - begin);
      begin = end;
      Batch::Line& out = batch.lines.emplace_back();
      out.kind = parser_.parse(line, document_);
      out.replaced = document_.replaced;
      if (out.kind == JsonLine::kDocument) {
        add_document(batch, out);
      } else {
        out.begins_like_json = line.substr(0, 1) == "{";
        out.reason = document_.reason;
        out.keys = document_.keys;
      }
      out.tokens_end = batch.tokens.size();
    }
  }

  void add_document(Batch& batch, Batch::Line& out) {
    tokenizer_->encode(document_.text, batch.tokens);
    if (append_eod_) batch.tokens.push_back(tokenizer_->end_of_document());
    out.text_bytes = document_.text.size();
    out.has_set = document_.has_set;
    out.set = document_.set;
  }

  static constexpr std::size_t kKeepText = std::size_t{4} << 20;
  bool append_eod_;
  std::unique_ptr<Tokenizer> tokenizer_;
  JsonLineParser parser_;
  JsonDocument document_;
};

// Threads that encode batches, which come out in the order in which they went in.
class OrderedWorkers {
 public:
  OrderedWorkers(const PreprocessOptions& options, const Tokenizer& tokenizer) {
    for (int i = 0; i < options.workers; ++i) {
      encoders_.push_back(std::make_unique<BatchEncoder>(options, tokenizer));
    }
    threads_.reserve(encoders_.size());
    try {
      for (auto& encoder : encoders_) {
        threads_.emplace_back([this, e = encoder.get()] { work(*e); });
      }
    } catch (const std::system_error& error) {
      const std::size_t started = threads_.size();
      join();
      throw EnvironmentError(cat("cannot start ", encoders_.size(), " threads (--workers): ",
                                 started, " started: ", error.code().message()));
    } catch (...) {
      join();
      throw;
    }
  }
  ~OrderedWorkers() { join(); }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // More batches than this wait for their turn: the next one must come out first.
  [[nodiscard]] bool full() const { return batches_.size() >= 4 * threads_.size() + 1; }
  [[nodiscard]] bool empty() const { return batches_.empty(); }
  void put(std::unique_ptr<Batch> batch) {
    batches_.push_back(std::move(batch));  // first: what waits is owned, whatever fails
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(batches_.back().get());
    }
    wake_.notify_one();
  }
  // The oldest batch, when it is done. Rethrows what its thread threw.
  std::unique_ptr<Batch> take() {
    std::unique_ptr<Batch> batch = std::move(batches_.front());
    {
      std::unique_lock lock(mutex_);
      finished_.wait(lock, [&] { return batch->done; });
    }
    batches_.pop_front();
    if (batch->error) std::rethrow_exception(batch->error);
    return batch;
  }

 private:
  void join() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void work(BatchEncoder& encoder) {
    for (;;) {
      Batch* batch = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
        if (stop_) return;
        batch = waiting_.front();
        waiting_.pop_front();
      }
      try {
        encoder.encode(*batch);
      } catch (...) {
        batch->error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        batch->done = true;
      }
      finished_.notify_one();
    }
  }

  std::vector<std::unique_ptr<BatchEncoder>> encoders_;
  std::deque<std::unique_ptr<Batch>> batches_;  // of the thread that reads and writes only
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<Batch*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Takes the batches in order: writes, counts, reports.
class Collector {
 public:
  // `total`: stored bytes of all inputs, 0 if not known.
  Collector(const PreprocessOptions& options, DocumentWriter& writer, std::uint64_t total)
      : options_(&options),
        writer_(&writer),
        total_(total),
        start_(std::chrono::steady_clock::now()) {}

  void take(const Batch& batch) {
    if (batch.first_line == 1 && !batch.plain) refuse_plain_text(batch);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < batch.lines.size(); ++i) {
      const Batch::Line& line = batch.lines[i];
      counts_.lines += !batch.plain;
      if (line.kind == JsonLine::kDocument) {
        document(batch, i, begin);
      } else if (line.kind == JsonLine::kBlank) {
        ++counts_.blank;
      } else {
        bad(batch, i);
      }
      begin = line.tokens_end;
    }
    counts_.inputs += batch.last;
    show_progress(batch.position);
  }
  [[nodiscard]] const PreprocessCounts& counts() const { return counts_; }
  void require_documents() const;

 private:
  static std::string place(const Batch& batch, std::size_t i) {
    if (batch.plain) return batch.input + ": ";
    return cat(batch.input, ":", batch.first_line + i, ": ");
  }
  void refuse_plain_text(const Batch& batch) const;
  void show_progress(std::uint64_t position) const;

  void document(const Batch& batch, std::size_t i, std::size_t begin) {
    const Batch::Line& line = batch.lines[i];
    if (line.replaced > 0) {
      if (options_->strict) {
        throw DataError(cat(place(batch, i), line.replaced,
                            " places that are not UTF-8 or half a surrogate pair (--strict)"));
      }
      counts_.replaced += static_cast<std::int64_t>(line.replaced);
      ++counts_.replaced_lines;
    }
    const std::size_t count = line.tokens_end - begin;
    writer_->add_document(batch.tokens.data() + begin, count,
                          line.has_set ? writer_->set_id(line.set) : -1);
    ++counts_.documents;
    counts_.empty += line.text_bytes == 0;
    counts_.tokens += static_cast<std::int64_t>(count);
    counts_.text_bytes += static_cast<std::int64_t>(line.text_bytes);
    if (options_->log_interval > 0 && counts_.documents % options_->log_interval == 0) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
      const double megabytes = static_cast<double>(counts_.text_bytes) / 1e6;
      log_info(cat(counts_.documents, " documents, ", counts_.tokens, " tokens, ", megabytes,
                   " MB of text, ", megabytes / took.count(), " MB/s"));
    }
  }

  void bad(const Batch& batch, std::size_t i) {
    const Batch::Line& line = batch.lines[i];
    std::string reason = line.reason;
    if (line.kind == JsonLine::kMissingKey) {
      std::string keys;
      for (const std::string& key : line.keys) keys += (keys.empty() ? "" : ", ") + key;
      reason += "; it has " + (keys.empty() ? "none" : keys);
      if (counts_.missing_key == 0) first_missing_ = reason;
    }
    if (options_->strict) throw DataError(place(batch, i) + reason + " (--strict)");
    if (counts_.bad() < kReports) {
      log_warning(place(batch, i) + reason);
    } else if (counts_.bad() == kReports) {
      log_warning(cat("more than ", kReports, " bad lines; further ones are only counted"));
    }
    std::int64_t& count = line.kind == JsonLine::kNotJson      ? counts_.not_json
                          : line.kind == JsonLine::kNotObject  ? counts_.not_object
                          : line.kind == JsonLine::kMissingKey ? counts_.missing_key
                                                               : counts_.not_string;
    ++count;
  }

  const PreprocessOptions* options_;
  DocumentWriter* writer_;
  std::uint64_t total_;
  std::chrono::steady_clock::time_point start_;
  PreprocessCounts counts_;
  std::string first_missing_;
};

// Before any of its lines is reported, so that there is one message.
void Collector::refuse_plain_text(const Batch& batch) const {
  constexpr std::size_t kLook = 10;
  std::size_t seen = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < batch.lines.size() && seen < kLook; ++i) {
    const Batch::Line& line = batch.lines[i];
    if (line.kind == JsonLine::kBlank) continue;
    if (line.kind != JsonLine::kNotJson || line.begins_like_json) return;
    if (seen++ == 0) first = i;
  }
  if (seen == 0) return;
  throw DataError(cat(place(batch, first), "expected an object of JSON on each line, found ",
                      seen == 1 ? "" : cat(seen, " lines with "),
                      "none: --plain takes a file of plain text as one document"));
}

void Collector::show_progress(std::uint64_t position) const {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  const double megabytes = static_cast<double>(counts_.text_bytes) / 1e6;
  std::string text = cat(std::llround(megabytes), " MB of text, ",
                         std::llround(megabytes / std::max(took.count(), 1e-3)), " MB/s");
  if (total_ > 0 && position > 0 && position <= total_) {
    const double share = static_cast<double>(position) / static_cast<double>(total_);
    const auto left = std::llround(took.count() * (1 - share) / share);
    text += cat(", ", static_cast<int>(share * 100), " % read, ", left / 3600, ":", left / 600 % 6,
                left / 60 % 10, ":", left / 10 % 6, left % 10, " left");
  }
  progress(text);
}

void Collector::require_documents() const {
  if (counts_.documents > 0) return;
  std::string names;
  for (const std::string& input : options_->inputs) {
    names += (names.empty() ? "" : ", ") + (input == "-" ? "stdin" : printable(input));
  }
  const std::string why = counts_.missing_key > 0
                              ? "first line without it: " + first_missing_ + " (--json-keys)"
                              : cat(counts_.bad(), " bad and ", counts_.blank, " blank ones");
  throw DataError(cat(names, ": no documents in ", counts_.lines, " lines: ", why));
}

// Adds lines up to the size of a batch; false at the end of the input.
bool fill(Batch& batch, LineReader& reader) {
  std::string_view line;
  bool more = true;
  while (batch.bytes.size() < kBatchBytes && (more = reader.next(line))) {
    if (batch.ends.empty()) batch.first_line = reader.line_number();
    batch.bytes += line;
    batch.ends.push_back(batch.bytes.size());
  }
  batch.bytes.append(LineReader::kPadding, '\0');
  return more;
}

// Stored bytes of all inputs, or 0 if one of them has no size before it is read.
std::uint64_t check_inputs(const PreprocessOptions& options) {
  int standard = 0;
  bool known = true;
  std::uint64_t total = 0;
  for (const std::string& input : options.inputs) {
    struct stat status {};
    if (input == "-") {
      ++standard;
      known = known && ::fstat(STDIN_FILENO, &status) == 0;
    } else if (::access(input.c_str(), R_OK) != 0 || ::stat(input.c_str(), &status) != 0) {
      throw EnvironmentError(cat("cannot open ", printable(input), ": ", std::strerror(errno)));
    }
    known = known && S_ISREG(status.st_mode);
    total += static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
  }
  if (standard > 1) throw UsageError("--input: stdin (-) can be read only once");
  return known ? total : 0;
}

}  // namespace

PreprocessCounts preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer,
                            DocumentWriter& writer) {
  MT_ASSERT(options.workers > 0);
  Collector collector(options, writer, check_inputs(options));
  OrderedWorkers workers(options, tokenizer);
  std::uint64_t position = 0;
  for (const std::string& input : options.inputs) {
    LineReader reader(input);
    for (bool more = true; more;) {
      if (workers.full()) collector.take(*workers.take());
      auto batch = std::make_unique<Batch>();
      batch->input = reader.name();
      batch->plain = options.plain;
      if (options.plain) {
        reader.rest(batch->bytes);
        more = false;
      } else {
        more = fill(*batch, reader);
      }
      batch->last = !more;
      batch->position = position + reader.stored_bytes();
      workers.put(std::move(batch));
    }
    position += reader.stored_bytes();
  }
  while (!workers.empty()) collector.take(*workers.take());
  progress("");
  collector.require_documents();
  return collector.counts();
}

}  // namespace mt
