// The pool with page classes in chunks: the rules of the native layout, everything counted anew
// each time.

#include <algorithm>
#include <cstdlib>

#include "tests/oracle/pool.h"

namespace kvblocks::oracle {
namespace {

// Whether `left` chunks can be divided so that every class from k on has what it needs.
bool CanDistribute(const std::vector<int64_t>& needed, const std::vector<int64_t>& loose,
                   const std::vector<int64_t>& pages_per_chunk, int64_t left, size_t k) {
  if (left < 0) return false;
  if (k == needed.size()) return true;
  for (int64_t given = 0; given <= left; ++given) {
    if (loose[k] + given * pages_per_chunk[k] >= needed[k] &&
        CanDistribute(needed, loose, pages_per_chunk, left - given, k + 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace

int Pool::ChunkOf(BlockId id) const {
  return static_cast<int>((id - 1) / native_->ids_per_chunk());
}

int64_t Pool::PagesPerChunk(int page_class) const {
  return native_->pages_per_chunk.at(static_cast<size_t>(page_class));
}

int Pool::ClassOfGroup(GroupId group) const {
  if (!native_) return 0;
  const auto size = static_cast<GroupId>(native_->class_of_group.size());
  return group >= 0 && group < size ? native_->class_of_group[static_cast<size_t>(group)] : -1;
}

int Pool::ClassOf(BlockId id) const {
  if (!native_) return 0;
  const int page_class = class_of_chunk_.at(static_cast<size_t>(ChunkOf(id)));
  if (page_class < 0) return -1;
  return (id - 1) % native_->ids_per_chunk() < PagesPerChunk(page_class) ? page_class : -1;
}

std::vector<BlockId> Pool::PagesOf(int chunk) const {
  std::vector<BlockId> pages;
  const int page_class = class_of_chunk_.at(static_cast<size_t>(chunk));
  if (page_class < 0) return pages;
  for (int64_t i = 0; i < PagesPerChunk(page_class); ++i) {
    pages.push_back(static_cast<BlockId>(1 + chunk * native_->ids_per_chunk() + i));
  }
  return pages;
}

bool Pool::IsInUse(int chunk) const {
  const std::vector<BlockId> pages = PagesOf(chunk);
  return std::any_of(pages.begin(), pages.end(),
                     [&](BlockId id) { return blocks_[static_cast<size_t>(id)].ref_count > 0; });
}

int64_t Pool::IdleSince(int chunk) const {
  int64_t last = 0;
  for (BlockId id : PagesOf(chunk)) {
    last = std::max(last, blocks_[static_cast<size_t>(id)].freed_at);
  }
  return last;
}

// Whether `needed` pages of each class and `kept` chunks are there once the `used` pages are
// referenced, too, and a chunk is lent (-1: none).
bool Pool::FitsAfter(const std::vector<int64_t>& needed, int64_t kept,
                     const std::vector<BlockId>& used, int lent_chunk, int lent_class) const {
  std::vector<int64_t> loose(needed.size(), 0);
  int64_t left = -kept;
  for (int chunk = 0; chunk < static_cast<int>(native_->num_chunks); ++chunk) {
    const int page_class =
        chunk == lent_chunk ? lent_class : class_of_chunk_[static_cast<size_t>(chunk)];
    const int64_t pages = page_class < 0 ? 0 : PagesPerChunk(page_class);
    int64_t referenced = 0;
    for (int64_t i = 0; i < pages; ++i) {
      const auto id = static_cast<BlockId>(1 + chunk * native_->ids_per_chunk() + i);
      referenced += blocks_[static_cast<size_t>(id)].ref_count > 0 ||
                    std::find(used.begin(), used.end(), id) != used.end();
    }
    if (referenced == 0) {
      ++left;
    } else {
      loose[static_cast<size_t>(page_class)] += pages - referenced;
    }
  }
  return CanDistribute(needed, loose, native_->pages_per_chunk, left, 0);
}

std::vector<BlockId> Pool::FreedInOrder() const {
  std::vector<BlockId> pages = queue();
  std::sort(pages.begin(), pages.end(), [&](BlockId a, BlockId b) {
    const int64_t left = blocks_[static_cast<size_t>(a)].freed_at;
    const int64_t right = blocks_[static_cast<size_t>(b)].freed_at;
    return left != right ? left < right : a < b;
  });
  return pages;
}

bool Pool::Promise(const std::vector<PageNeed>& needs, int64_t kept, int64_t reserved) {
  std::vector<int64_t> needed(queues_.size(), 0);
  std::vector<int64_t> later(queues_.size(), 0);
  std::vector<BlockId> touched;
  for (int page_class : native_->class_of_group) needed[static_cast<size_t>(page_class)] = reserved;
  for (size_t g = 0; g < needs.size(); ++g) {
    const auto k = static_cast<size_t>(ClassOfGroup(static_cast<GroupId>(g)));
    needed[k] += needs[g].pages;
    later[k] += needs[g].later;
    touched.insert(touched.end(), needs[g].unreferenced_hits.begin(),
                   needs[g].unreferenced_hits.end());
  }
  if (!FitsAfter(needed, kept, touched, -1, -1)) return false;
  std::vector<int64_t> with_later = needed;
  for (size_t k = 0; k < later.size(); ++k) with_later[k] += later[k];
  promised_ = FitsAfter(with_later, kept, touched, -1, -1) ? with_later : needed;
  kept_ = kept;
  return true;
}

Pool::Choice Pool::ChooseFreely(int page_class) const {
  const std::vector<BlockId>& queue = queues_[static_cast<size_t>(page_class)];
  const auto first_of = [&](int chunk) {
    return static_cast<BlockId>(1 + chunk * native_->ids_per_chunk());
  };
  if (!queue.empty() && !blocks_[static_cast<size_t>(queue.front())].key) {
    return {.page = queue.front()};
  }
  int oldest = -1;
  for (int chunk = 0; chunk < static_cast<int>(class_of_chunk_.size()); ++chunk) {
    const int lent_to = class_of_chunk_[static_cast<size_t>(chunk)];
    if (lent_to < 0) return {.page = first_of(chunk), .chunk = chunk};
    if (lent_to == page_class || IsInUse(chunk)) continue;
    if (oldest < 0 || IdleSince(chunk) < IdleSince(oldest)) oldest = chunk;
  }
  const bool steal =
      oldest >= 0 &&
      (queue.empty() || IdleSince(oldest) < blocks_[static_cast<size_t>(queue.front())].freed_at);
  if (steal) return {.page = first_of(oldest), .chunk = oldest};
  if (queue.empty()) std::abort();
  return {.page = queue.front()};
}

void Pool::Lend(int chunk, int page_class) {
  int& lent_to = class_of_chunk_[static_cast<size_t>(chunk)];
  if (lent_to >= 0) ++num_steals_;
  for (BlockId id : PagesOf(chunk)) {
    DropKey(id, Event::Kind::kReused);
    std::erase(queues_[static_cast<size_t>(lent_to)], id);
  }
  lent_to = page_class;
  const std::vector<BlockId> pages = PagesOf(chunk);
  std::vector<BlockId>& queue = queues_[static_cast<size_t>(page_class)];
  queue.insert(queue.begin(), pages.begin(), pages.end());
  ++clock_;
  for (BlockId id : pages) blocks_[static_cast<size_t>(id)].freed_at = clock_;
}

BlockId Pool::TakePage(int page_class) {
  std::vector<BlockId>& queue = queues_[static_cast<size_t>(page_class)];
  if (--promised_[static_cast<size_t>(page_class)] < 0) std::abort();
  Choice choice = ChooseFreely(page_class);
  const bool in_use = choice.chunk < 0 && IsInUse(ChunkOf(choice.page));
  if (!in_use && !FitsAfter(promised_, kept_, {choice.page}, choice.chunk, page_class)) {
    ++num_packed_;
    const auto page =
        std::find_if(queue.begin(), queue.end(), [&](BlockId id) { return IsInUse(ChunkOf(id)); });
    if (page == queue.end()) std::abort();
    choice = {.page = *page};
  }
  if (choice.chunk >= 0) Lend(choice.chunk, page_class);
  std::erase(queue, choice.page);
  DropKey(choice.page, Event::Kind::kReused);
  blocks_[static_cast<size_t>(choice.page)].ref_count = 1;
  return choice.page;
}

std::vector<BlockId> Pool::TakePromised(int64_t k, GroupId group) {
  std::vector<BlockId> taken;
  for (int64_t i = 0; i < k; ++i) taken.push_back(TakePage(ClassOfGroup(group)));
  return taken;
}

}  // namespace kvblocks::oracle
