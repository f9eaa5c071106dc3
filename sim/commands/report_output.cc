#include "sim/commands/report_output.h"

#include "absl/strings/str_cat.h"
#include "sim/commands/output.h"
#include "sim/report/report_json.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

absl::Status WritePage(const std::string& path, const google::protobuf::Message& report,
                       const PageParts& others) {
  const auto page = HtmlPage(report, others);
  return page.ok() ? WriteFile(path, *page) : page.status();
}

void ReportOutput::AddJson(OptionParser* options, const std::string& group) {
  options->AddFlag({.name = "--json",
                    .help = "print the report as JSON instead of the table",
                    .group = group},
                   &json_);
}

void ReportOutput::AddFiles(OptionParser* options, const std::string& group,
                            const Files& files) {
  has_files_ = true;
  options_ = options;
  AddJson(options, group);
  options->Add({.name = "--json-file",
                .unit = "FILE",
                .help = "write the report as JSON, too; - is standard output, without a table",
                .group = group,
                .file = FileUse::kWritten},
               &json_file_);
  if (files.rows_help != nullptr) {
    options->Add({.name = "--csv",
                  .unit = "FILE",
                  .help = absl::StrCat(files.rows_help, "; - is standard output, without a table"),
                  .group = group,
                  .file = FileUse::kWritten},
                 &csv_);
  }
  if (files.has_page) {
    options->Add({.name = "--html",
                  .unit = "FILE",
                  .help = "the report as a page of charts and tables for a browser",
                  .group = group,
                  .file = FileUse::kWritten},
                 &html_);
  }
}

void ReportOutput::AddTerminal(OptionParser* options, const std::string& group,
                               const std::string& quiet_help) {
  options->AddFlag({.name = "--quiet", .help = quiet_help, .group = group}, &quiet_);
  options->Add({.name = "--color",
                .unit = "auto|always|never",
                .help = "headings in bold [auto]",
                .group = group},
               &color_);
}

absl::Status ReportOutput::Check(const std::vector<RunFile>& others) {
  std::vector<RunFile> files;
  if (json_) files.push_back({"--json", "-", FileUse::kWritten});
  files.insert(files.end(), options_->files().begin(), options_->files().end());
  files.insert(files.end(), others.begin(), others.end());
  for (const RunFile& file : files) {
    is_stdout_taken_ |= file.use == FileUse::kWritten && IsStandardOutput(file.path);
  }
  return CheckRunFiles(files);
}

ExitStatus ReportOutput::Print(const std::string& command,
                               const google::protobuf::Message& report, const Texts& texts) const {
  absl::Status status;
  if (!html_.empty()) status = WritePage(html_, report, texts.page_parts);
  if (status.ok() && !csv_.empty() && texts.rows != nullptr) status = WriteFile(csv_, texts.rows());
  std::string json;
  if (status.ok() && (json_ || !json_file_.empty())) {
    auto text = ToJson(report);
    status = text.status();
    if (text.ok()) json = *std::move(text);
  }
  if (status.ok() && !json_file_.empty()) status = WriteFile(json_file_, json);
  if (!status.ok()) return Fail(command, status);
  if (json_) return WriteStdout(json) ? kDone : kBadInput;
  if (is_stdout_taken_ || (quiet_ && has_files_)) return kDone;
  return WriteStdout(texts.table(UseColor(color_))) ? kDone : kBadInput;
}

}  // namespace kvblocks::sim
