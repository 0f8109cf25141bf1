// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/table_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/formats/columns.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/parquet.h"

namespace millrace::formats {
namespace {

// pyarrow reads what is written in tests/e2e/test_lerobot_demo.py; here is what it refuses, and that it reads itself.
TEST(TableWriter, RefusesColumnsThatDoNotFit) {
  const auto refused = [](TableToWrite table) {
    MemorySink out;
    const Status status = write_table(table, out);
    EXPECT_TRUE(out.bytes().empty());
    return status ? "" : status.error().message();
  };
  using Ints = std::vector<int64_t>;
  EXPECT_THAT(refused({.columns = {{"a", Ints{1, 2}}, {"b", Ints{1}}}}), ::testing::HasSubstr("b has 1 rows"));
  EXPECT_THAT(refused({.columns = {{"a", Ints{1}}, {"a", Ints{1}}}}), ::testing::HasSubstr("two columns"));
  EXPECT_THAT(refused({.columns = {{.name = "a", .values = Ints{1, 2, 3}, .width = 2}}}),
              ::testing::HasSubstr("not lists of 2"));
  EXPECT_THAT(refused({.columns = {{.name = "a", .values = Ints{1, 2, 3}, .offsets = {{0, 2}}}}}),
              ::testing::HasSubstr("from 0 to 3"));
  EXPECT_THAT(refused({.columns = {{"a", Ints{1, 2, 3}}}, .row_groups = {1, 1}}), ::testing::HasSubstr("2 rows"));
}

TEST(TableWriter, WritesWhatTheReaderOfDocumentsReads) {
  MemorySink out;
  const Status written = write_table(
      {.columns = {{"text", std::vector<std::string>{"one", "two", "three"}}, {"n", std::vector<int64_t>{1, 2, 3}}},
       .row_groups = {2, 1}},
      out);
  if (!written && written.error().code() == ErrorCode::kUnsupported) GTEST_SKIP() << written.error().message();
  ASSERT_TRUE(written) << written.error().to_string();
  const MemoryReader file(out.bytes(), "a.parquet");
  const auto source = open_table(file, {}, 0);
  ASSERT_TRUE(source) << source.error().to_string();
  std::vector<std::string> texts;
  for (auto chunk = (*source)->next(); chunk && *chunk; chunk = (*source)->next()) {
    for (const DocumentSpan& span : (*chunk)->documents) {
      texts.push_back((*chunk)->text.substr(span.begin, span.end - span.begin));
    }
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("one", "two", "three"));
}

std::vector<std::byte> table_bytes(const TableToWrite& table) {
  MemorySink out;
  const Status status = write_table(table, out);
  EXPECT_TRUE(status) << status.error().to_string();
  return out.take();
}

std::unique_ptr<RowSource> rows_of(const RandomReader& file) {
  auto source = open_rows(file);
  EXPECT_TRUE(source) << source.error().to_string();
  return *std::move(source);
}

struct Rows {
  RowSource* source = nullptr;
  int64_t begin = 0, end = 0;
  std::vector<ColumnChange> changes;
};

Status copy_rows(const std::vector<Rows>& rows, ByteSink& out) {
  ASSIGN_OR_RETURN(const auto copier, new_row_copier(out));
  for (const Rows& each : rows) RETURN_IF_ERROR(copier->add(*each.source, each.begin, each.end, each.changes));
  return copier->finish();
}

TEST(CopyRows, TakesStretchesOfFilesOneBehindTheOther) {
  using Floats = std::vector<float>;
  const auto a = table_bytes({.columns = {{"n", std::vector<int64_t>{1, 2, 3, 4}},
                                          {.name = "v", .values = Floats{1, 1, 2, 2, 3, 3, 4, 4}, .width = 2}},
                              .row_groups = {1, 3}});
  const auto b = table_bytes(
      {.columns = {{"n", std::vector<int64_t>{5, 6}}, {.name = "v", .values = Floats{5, 5, 6, 6}, .width = 2}}});
  const MemoryReader first(a, "a.parquet"), second(b, "b.parquet");
  const auto from_first = rows_of(first), from_second = rows_of(second);
  const std::vector<Rows> rows = {{from_second.get(), 1, 2}, {from_first.get(), 0, 3}, {from_first.get(), 3, 4}};
  MemorySink out;
  ASSERT_TRUE(copy_rows(rows, out));
  const MemoryReader file(out.bytes(), "c.parquet");
  const auto table = open_columns(file);
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_THAT((*table)->footer().groups, ::testing::SizeIs(3));
  const std::string names[] = {"n", "v"};
  const auto values = read_columns(**table, names, 100);
  ASSERT_TRUE(values);
  EXPECT_THAT((*values)[0].integers, ::testing::ElementsAre(6, 1, 2, 3, 4));
  EXPECT_THAT((*values)[1].fields[0].reals, ::testing::ElementsAre(6, 6, 1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_EQ((*table)->footer().find("v")->fixed_size, 2);
}

// `datasets` 3 stops at the type List; a list of structs would be another thing as a Sequence.
TEST(RowCopier, WritesFeaturesThatAllVersionsOfDatasetsRead) {
  const auto a =
      table_bytes({.columns = {{"n", std::vector<int64_t>{1}}},
                   .metadata = {{"huggingface",
                                 R"({"info":{"features":{"v":{"feature":{"_type":"Value"},"length":6,)"
                                 R"("_type":"List"},"s":{"feature":{"role":{"_type":"Value"}},"_type":"List"}}}})"}}});
  const MemoryReader file(a, "a.parquet");
  const auto rows = open_rows(file);
  ASSERT_TRUE(rows) << rows.error().to_string();
  MemorySink out;
  const auto copier = new_row_copier(out);
  ASSERT_TRUE(copier);
  ASSERT_TRUE((*copier)->add(**rows, 0, 1));
  ASSERT_TRUE((*copier)->finish());
  const MemoryReader made(out.bytes(), "b.parquet");
  const auto table = open_columns(made);
  ASSERT_TRUE(table);
  const std::string* const text = (*table)->footer().metadata_of("huggingface");
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(*text, R"({"info":{"features":{"v":{"feature":{"_type":"Value"},"length":6,"_type":"Sequence"},)"
                   R"("s":{"feature":{"role":{"_type":"Value"}},"_type":"List"}}}})");
}

TEST(ReplaceColumns, KeepsOtherColumnsRowGroupsAndMetadata) {
  const auto a = table_bytes({.columns = {{"n", std::vector<int64_t>{1, 2, 3}},
                                          {.name = "v", .values = std::vector<float>{1, 1, 2, 2, 3, 3}, .width = 2},
                                          {"t", std::vector<std::string>{"a", "b", "c"}}},
                              .row_groups = {1, 2},
                              .metadata = {{"huggingface", "{}"}}});
  const MemoryReader before(a, "a.parquet");
  const ColumnToWrite columns[] = {{"n", std::vector<double>{0.5, 1.5, 2.5}},
                                   {.name = "l", .values = std::vector<double>{7, 8}, .offsets = {{0, 2, 2, 2}}}};
  MemorySink out;
  ASSERT_TRUE(replace_columns(before, columns, out));
  const MemoryReader file(out.bytes(), "b.parquet");
  const auto table = open_columns(file);
  ASSERT_TRUE(table) << table.error().to_string();
  const TableFooter& footer = (*table)->footer();
  std::vector<std::string> names;
  for (const ColumnType& column : footer.columns) names.push_back(column.name);
  EXPECT_THAT(names, ::testing::ElementsAre("n", "v", "t", "l"));
  EXPECT_EQ(footer.find("v")->fixed_size, 2);
  ASSERT_NE(footer.metadata_of("huggingface"), nullptr);
  ASSERT_THAT(footer.groups, ::testing::SizeIs(2));
  EXPECT_EQ(footer.groups[0].rows, 1);
  const auto values = read_columns(**table, names, 100);
  ASSERT_TRUE(values);
  EXPECT_THAT((*values)[0].reals, ::testing::ElementsAre(0.5, 1.5, 2.5));
  EXPECT_THAT((*values)[1].fields[0].reals, ::testing::ElementsAre(1, 1, 2, 2, 3, 3));
  EXPECT_THAT((*values)[2].texts, ::testing::ElementsAre("a", "b", "c"));
  EXPECT_THAT((*values)[3].offsets, ::testing::ElementsAre(0, 2, 2, 2));

  const ColumnToWrite shorter{"n", std::vector<double>{1}};
  MemorySink none;
  EXPECT_FALSE(replace_columns(before, {&shorter, 1}, none));
  EXPECT_TRUE(none.bytes().empty());
}

TEST(CopyRows, RefusesWhatDoesNotFit) {
  const auto a = table_bytes({.columns = {{"n", std::vector<int64_t>{1, 2}}}});
  const auto b = table_bytes({.columns = {{"n", std::vector<float>{1, 2}}}});
  const MemoryReader ints(a, "a.parquet"), floats(b, "b.parquet"), broken(as_bytes("PAR1 no PAR1"), "c.parquet");
  const auto refused = [](std::vector<Rows> rows) {
    MemorySink out;
    const Status status = copy_rows(rows, out);
    EXPECT_FALSE(status);
    return status ? std::string() : status.error().to_string();
  };
  using ::testing::HasSubstr;
  const auto a_rows = rows_of(ints), b_rows = rows_of(floats);
  EXPECT_THAT(refused({}), HasSubstr("no rows"));
  EXPECT_THAT(refused({{a_rows.get(), 1, 1}}), HasSubstr("no rows"));
  EXPECT_THAT(refused({{a_rows.get(), 1, 3}}), HasSubstr("a.parquet: it has 2 rows, and no rows [1, 3)"));
  EXPECT_THAT(refused({{a_rows.get(), 0, 2}, {b_rows.get(), 0, 2}}),
              HasSubstr("b.parquet: its columns are not those of a.parquet: n holds float, not int64"));
  EXPECT_THAT(refused({{a_rows.get(), 0, 2, {{.column = "n", .for_values = {5, 6}}}}}),
              HasSubstr("a.parquet: row 1 of n holds 2, of 2 that there are"));
  EXPECT_THAT(refused({{b_rows.get(), 0, 2, {{.column = "n", .first = 1}}}}),
              HasSubstr("b.parquet: the column n holds float"));
  const auto opened = open_rows(broken);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("c.parquet: "));
}

TEST(CopyRows, ChangesIntegersAndFitsLists) {
  using Floats = std::vector<float>;
  using Ints = std::vector<int64_t>;
  const auto a = table_bytes(
      {.columns = {{"n", Ints{0, 1}}, {"t", Ints{1, 0}}, {.name = "v", .values = Floats{1, 2, 3, 4}, .width = 2}}});
  const auto b = table_bytes(
      {.columns = {
           {.name = "v", .values = Floats{5, 6, 7, 8}, .offsets = {{0, 2, 4}}}, {"t", Ints{0, 2}}, {"n", Ints{0, 1}}}});
  const auto uneven = table_bytes(
      {.columns = {
           {.name = "v", .values = Floats{5, 6, 7}, .offsets = {{0, 1, 3}}}, {"t", Ints{0, 1}}, {"n", Ints{0, 1}}}});
  const MemoryReader first(a, "a.parquet"), second(b, "b.parquet"), third(uneven, "c.parquet");
  const auto from_first = rows_of(first), from_second = rows_of(second), from_third = rows_of(third);
  const ColumnChange count{.column = "n", .first = 7, .step = 1}, none{.column = "other", .first = 1};
  const ColumnChange tasks{.column = "t", .for_values = {4, 5, 6}};
  const auto copied = [](std::vector<Rows> rows) {
    MemorySink out;
    const Status status = copy_rows(rows, out);
    EXPECT_TRUE(status) << status.error().to_string();
    return out.take();
  };
  const std::string names[] = {"n", "t", "v"};
  const auto bytes = copied({{from_first.get(), 0, 2, {count, none}}, {from_second.get(), 0, 2, {count, tasks}}});
  const MemoryReader file(bytes, "d.parquet");
  const auto table = open_columns(file);
  ASSERT_TRUE(table);
  const auto values = read_columns(**table, names, 100);
  ASSERT_TRUE(values);
  EXPECT_THAT((*values)[0].integers, ::testing::ElementsAre(7, 8, 7, 8));
  EXPECT_THAT((*values)[1].integers, ::testing::ElementsAre(1, 0, 4, 6));
  EXPECT_THAT((*values)[2].fields[0].reals, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ((*table)->footer().find("v")->fixed_size, 2);
  // The other way round, lists of any length stay such.
  const auto back = copied({{from_second.get(), 1, 2}, {from_first.get(), 0, 2}});
  const MemoryReader plain(back, "e.parquet");
  const auto again = open_columns(plain);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->footer().find("v")->fixed_size, -1);
  EXPECT_THAT((*read_columns(**again, names, 100))[2].fields[0].reals, ::testing::ElementsAre(7, 8, 1, 2, 3, 4));
  MemorySink out;
  const std::vector<Rows> rows = {{from_first.get(), 0, 2}, {from_third.get(), 0, 2}};
  EXPECT_FALSE(copy_rows(rows, out)) << "lists of other lengths are not fixed ones";
}

}  // namespace
}  // namespace millrace::formats
