// VerifierRun: the one KvCacheVerifier. Its parts lie in files of their own: checks of options and
// steps, writing and attending (step_attention.cc), layers that are attended to jointly
// (step_joint.cc), and what failures say.

#ifndef KVBLOCKS_ATTENTION_VERIFY_VERIFIER_RUN_H_
#define KVBLOCKS_ATTENTION_VERIFY_VERIFIER_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/verify/paged_memory.h"
#include "attention/verify/token_values.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::attention {

// Attention of one query [num_heads, key_size] over rows that lie one after another in the order of
// their tokens, by CPU_REFERENCE without blocks: what attention through block tables is compared
// with. `sinks`, one logit per head or none, take part in the sum of the softmax only. No row:
// zeros.
void AttendPlainly(const RowShape& shape, float scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out);

class VerifierRun final : public KvCacheVerifier {
 public:
  explicit VerifierRun(VerifierOptions options);
  // REQUIRES: checked options. Before the first step.
  absl::Status Prepare();

  absl::Status CopyBlocks(absl::Span<const VerifiedCopy> copies) override;
  absl::Status OnStep(absl::Span<const VerifiedRequest> requests) override;
  absl::Status Rollback(uint64_t request, int64_t num_tokens) override;
  absl::Status Release(uint64_t request) override;
  absl::Status Drop(absl::Span<const int32_t> blocks) override;

  const std::vector<VerifiedGroup>& groups() const override { return options_.groups; }
  int64_t num_joint_layers() const override { return static_cast<int64_t>(joints_.size()); }
  const VerifierStats& stats() const override { return stats_; }
  const std::optional<VerifierFailure>& failure() const override { return failure_; }

 private:
  struct Layer {
    size_t group;
    int64_t index;  // in the group
  };
  struct Held {
    std::string name;
    std::vector<uint64_t> prefixes;            // after each token in the cache
    std::vector<std::vector<int32_t>> tables;  // per group, as last seen
    std::vector<std::vector<float>> rows;      // per layer: the plain list, sink tokens first
    int64_t num_encoder_tokens = 0;
    int64_t num_tokens() const { return static_cast<int64_t>(prefixes.size()); }
  };
  struct Joint {
    size_t window_layer, rows_layer;
    size_t index;  // in the options
    bool has_window() const { return window_layer != rows_layer; }
  };
  // What the metadata builders were made for.
  struct Room {
    int64_t num_reqs = 0, num_tokens = 0, seq_len = 0;
  };
  // A request in the step under way.
  struct Part {
    uint64_t id = 0;
    Held* held = nullptr;
    int64_t num_computed = 0;
    bool is_new = false;
    bool changed = false;  // it, or a table of it
    size_t index = 0;      // in parts_
    bool is_queried = false;
    absl::Span<const VerifiedCheckpoint> checkpoints = {};
  };
  struct Query {
    const Part* part;
    int64_t position;
  };
  // Queries of one request at successive positions, as the paged side takes them.
  struct Piece {
    size_t first_query;
    int64_t num_queries;
    int64_t num_rows;  // those that the last of the queries sees, or a window hides from it
  };
  // A block that was not where it is now in the tables of the step before.
  struct Appearance {
    int32_t block;
    uint64_t request;
    size_t group;
    bool is_new;  // no computed token lies in it
  };

  // Rows of a group in the cache: sink tokens, then stored rows.
  int64_t NumRows(const VerifiedGroup& group, int64_t num_tokens) const {
    return NumSinkRows(group) + num_tokens / group.compress_ratio;
  }
  // Rows of the group that a query sees, or a window hides from it, behind so many tokens.
  int64_t RowsSeen(const VerifiedGroup& group, const Held& held, int64_t num_tokens) const {
    return group.is_cross ? held.num_encoder_tokens : NumRows(group, num_tokens);
  }
  int64_t BlockRows(const VerifiedGroup& group) const {
    return group.block_size / group.compress_ratio;
  }
  int64_t NumSinkRows(const VerifiedGroup& group) const {
    return static_cast<int64_t>(group.sink_blocks.size()) * BlockRows(group);
  }
  int64_t FirstVisible(const VerifiedGroup& group, int64_t position) const;
  int32_t BlockOfRow(size_t g, const Held& held, int64_t row) const;
  // The token that a row stands for, the last of them if it is several; negative for sink tokens.
  int64_t TokenOfRow(const VerifiedGroup& group, int64_t row) const {
    return (row - NumSinkRows(group) + 1) * group.compress_ratio - 1;
  }
  RowShape Shape(const VerifiedGroup& group) const { return ShapeOf(group, options_); }
  const VerifiedGroup& GroupOf(size_t layer) const { return options_.groups[layers_[layer].group]; }
  std::string LayerName(size_t layer) const;
  const float* PlainRow(size_t layer, const Held& held, int64_t row) const;
  // Whether the row that the tables lead to is what the plain list has.
  bool IsAsWritten(size_t layer, const Held& held, int64_t row) const;

  void WriteSinkRows();
  absl::Status CheckStep(absl::Span<const VerifiedRequest> requests) const;
  void TakeParts(absl::Span<const VerifiedRequest> requests);
  bool ReplaceTable(const Part& part, size_t g, absl::Span<const int32_t> table);
  void Settle();
  absl::Status CheckTables();
  void MakeRoom();
  absl::Status BuildMetadata(size_t g);
  size_t FirstLayerOf(size_t g) const;
  void FillEncoderRows(Held& held, uint64_t salt, absl::Span<const int64_t> tokens);
  void AppendTokens(Held& held, uint64_t salt, absl::Span<const int64_t> tokens);
  absl::Status WriteRows(size_t g);
  absl::Status CheckEntry(const Part& part, size_t layer, int64_t entry, int64_t token);
  absl::Status ReadStates(const Part& part);
  absl::Status WriteStates(const Part& part);
  absl::Span<const float> StateOf(size_t layer, const Held& held, int64_t num_tokens);
  void WriteState(size_t layer, const Held& held, int64_t num_tokens, int32_t block);
  absl::Status ReadBack(const Part& part);
  void ChooseQueries();
  absl::Status Attend(size_t g);
  absl::Status AttendPieces(size_t layer, absl::Span<const Piece> pieces);
  absl::Status RunPaged(size_t layer, absl::Span<const Piece> pieces);
  absl::Status Compare(size_t layer);
  void FillQuery(size_t layer, const Query& query, absl::Span<float> out) const;
  void AttendReference(size_t layer, const Query& query, int64_t first_row, bool with_sinks,
                       absl::Span<double> out) const;
  absl::Status CheckJoints() const;
  absl::Status AttendJointly(size_t joint);
  absl::Status RunJoint(const Joint& joint, size_t query_layer);
  void AttendReference(const Joint& joint, size_t query_layer, const Query& query,
                       absl::Span<double> out) const;
  // Rows of a joint's compressed cache that a query reads.
  std::vector<int64_t> ChosenRows(const Joint& joint, const Held& held, int64_t num_rows,
                                  absl::Span<const float> query) const;
  absl::Status CheckCompressors() const;
  absl::Status Compress(const VerifiedCompressor& compressor, size_t layer);
  absl::Status WrongJointOutput(const Joint& joint, const Query& query,
                                absl::Span<const float> got, absl::Span<const double> expected);
  // The table of a query's request for a group, as the paged side takes it.
  void AppendTable(size_t g, const Query& query, int64_t columns);
  static float Scale(const RowShape& shape);
  static double LargestError(absl::Span<const float> got, absl::Span<const double> expected);

  absl::Status Fail(VerifierFailure failure);
  absl::Status FailedOperation(size_t layer, const char* operation, const absl::Status& status);
  size_t FirstWrong(absl::Span<const float> got, absl::Span<const double> expected) const;
  bool FindWrongRow(size_t layer, const Held& held, int64_t begin, int64_t end,
                    VerifierFailure* failure) const;
  absl::Status WrongRow(size_t layer, const Part& part, int64_t row);
  absl::Status WrongOutput(size_t layer, const Query& query, absl::Span<const float> got);
  std::string NameOf(uint64_t request) const;
  std::string DescribeRow(size_t layer, const Held& held, int64_t row) const;
  std::string DescribeBlock(size_t layer, int32_t block, int64_t offset) const;

  const VerifierOptions options_;
  ExecContext context_;
  const TokenValues values_;
  std::vector<Layer> layers_;
  std::vector<Joint> joints_;
  std::vector<std::vector<float>> sink_rows_;  // per layer
  PagedMemory memory_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Held>> held_;
  std::vector<int32_t> num_holders_;  // per block, in tables of held_
  // Per group; made anew when a step needs more room.
  std::vector<std::optional<AttentionMetadataBuilder>> builders_;
  Room room_;

  // Of the step under way; buffers are reused.
  std::vector<Part> parts_;
  std::vector<Appearance> appeared_;
  std::vector<int32_t> left_;  // blocks that a table no longer names
  std::vector<Query> queries_;
  size_t turn_ = 0;            // where the next step goes on taking queries
  std::vector<size_t> batch_;  // indices into queries_, in the order of the paged side's rows
  std::vector<float> query_values_, outputs_, new_rows_, state_, index_weights_;
  std::vector<std::vector<int32_t>> batch_rows_;  // per group: part -> row of the metadata
  std::vector<int32_t> piece_tables_, piece_rows_, piece_starts_;
  std::vector<int32_t> window_slots_, window_counts_, row_slots_, row_counts_, positions_;
  std::vector<int64_t> cross_slots_;
  std::vector<double> errors_;

  VerifierStats stats_;
  std::optional<VerifierFailure> failure_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_VERIFY_VERIFIER_RUN_H_
