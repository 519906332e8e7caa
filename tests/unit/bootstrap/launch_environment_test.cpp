// SPDX-License-Identifier: MIT
#include "bootstrap/launch_environment.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "store/address.hpp"

namespace sluice::bootstrap {
namespace {

using Variables = std::map<std::string, std::string>;

base::Environment environment_of(const Variables& variables) {
  return base::Environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Result<Launch> read(const Variables& variables) {
  return read_launch(environment_of(variables));
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

void expect_invalid(const Variables& variables, const std::string& name, const std::string& value) {
  const auto launch = read(variables);
  ASSERT_FALSE(launch.ok()) << name << "=" << value;
  EXPECT_EQ(launch.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(launch.status().message().find(name), std::string::npos) << launch.status().message();
  EXPECT_NE(launch.status().message().find(value), std::string::npos) << launch.status().message();
}

const Variables kSluice{
    {"SLUICE_RANK", "2"}, {"SLUICE_SIZE", "4"}, {"SLUICE_RENDEZVOUS", "tcp:localhost:5000"}};
const Variables kTorch{{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RUN_ID", "job"},
                       {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                         {"PMIX_NAMESPACE", "777"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "8"},
                       {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_JOB_ID", "12"},
                       {"SLURM_STEP_ID", "3"},        {"SLURM_STEP_NUM_NODES", "1"}};

// What it says is then read_launch's.
TEST(LaunchEnvironment, SaysWhetherALauncherHasStartedIt) {
  for (const Variables& all : {kSluice, kTorch, kOpenMpi, kSlurm}) {
    EXPECT_TRUE(is_launched(environment_of(all)));
  }
  EXPECT_TRUE(is_launched(environment_of({{"SLUICE_RANK", "2"}})));
  EXPECT_NE(read({{"SLUICE_RANK", "2"}}).status().message().find("SLUICE_SIZE"), std::string::npos);
  for (const Variables& few : {Variables{},
                               {{"RANK", "1"}},
                               {{"SLURM_PROCID", "0"}},
                               {{"OMPI_COMM_WORLD_RANK", ""}},
                               {{"SLUICE_RENDEZVOUS", "unix:name"}}}) {
    EXPECT_FALSE(is_launched(environment_of(few)));
  }
}

TEST(LaunchEnvironment, ReadsItsOwnVariables) {
  const auto launch = read(kSluice);
  ASSERT_TRUE(launch.ok()) << launch.status().to_string();
  EXPECT_EQ(launch.value().rank, 2);
  EXPECT_EQ(launch.value().size, 4);
  EXPECT_EQ(launch.value().rendezvous, "tcp:localhost:5000");
}

TEST(LaunchEnvironment, TheOrderIsSluiceTorchrunMpirunSrun) {
  Variables all = kSlurm;
  EXPECT_EQ(read(all).value().size, 6);
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read(all).value().size, 3);
  all.insert(kTorch.begin(), kTorch.end());
  EXPECT_EQ(read(all).value().size, 2);
  all.insert(kSluice.begin(), kSluice.end());
  EXPECT_EQ(read(all).value().size, 4);
}

TEST(LaunchEnvironment, TorchrunOnOneHostMeetsAtANameOfItsJob) {
  const auto launch = read(kTorch);
  ASSERT_TRUE(launch.ok()) << launch.status().to_string();
  EXPECT_EQ(launch.value().rank, 1);
  // Every variable that tells jobs apart changes the name.
  std::set<std::string> names{launch.value().rendezvous};
  for (const auto& [name, value] : Variables{{"MASTER_PORT", "29501"},
                                             {"TORCHELASTIC_RUN_ID", "job2"},
                                             {"TORCHELASTIC_RESTART_COUNT", "1"}}) {
    names.insert(read(with(kTorch, name, value)).value().rendezvous);
  }
  EXPECT_EQ(names.size(), 4U);
  for (const std::string& name : names) {
    EXPECT_EQ(name.substr(0, 5), "unix:");
    EXPECT_TRUE(store::parse_address(name).ok()) << name;
  }
  // Long job names are shortened and stay apart.
  const std::string long_name(300, 'j');
  const auto one = read(with(kTorch, "TORCHELASTIC_RUN_ID", long_name + "1"));
  const auto two = read(with(kTorch, "TORCHELASTIC_RUN_ID", long_name + "2"));
  EXPECT_TRUE(store::parse_address(one.value().rendezvous).ok());
  EXPECT_NE(one.value().rendezvous, two.value().rendezvous);
}

TEST(LaunchEnvironment, TorchrunOnSeveralHostsMeetsBesideTheMastersPort) {
  EXPECT_EQ(read(with(kTorch, "LOCAL_WORLD_SIZE", "1")).value().rendezvous,
            "tcp:127.0.0.1:29501/torchrun-job");
  auto ipv6 = with(with(kTorch, "LOCAL_WORLD_SIZE", "1"), "MASTER_ADDR", "fe80::1");
  EXPECT_EQ(read(ipv6).value().rendezvous, "tcp:[fe80::1]:29501/torchrun-job");
  // Scripts of one's own, and launchers other than torchrun, often set only what PyTorch asks for.
  Variables few = with(kTorch, "MASTER_ADDR", "first");
  few.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(read(few).value().rendezvous, "tcp:first:29501/torchrun-job");
  for (const char* here : {"localhost", "127.0.0.1", "::1"}) {
    EXPECT_EQ(read(with(few, "MASTER_ADDR", here)).value().rendezvous,
              read(kTorch).value().rendezvous)
        << here;
  }
  // Agents count restarts by themselves.
  EXPECT_EQ(read(with(ipv6, "TORCHELASTIC_RESTART_COUNT", "3")).value().rendezvous,
            read(ipv6).value().rendezvous);
}

TEST(LaunchEnvironment, MpirunAndSrunMeetAtTheirJob) {
  EXPECT_NE(read(kOpenMpi).value().rendezvous.find("777"), std::string::npos);
  const auto launch = read(kSlurm);
  ASSERT_TRUE(launch.ok()) << launch.status().to_string();
  EXPECT_EQ(launch.value().rank, 5);
  EXPECT_NE(launch.value().rendezvous.find("12-3"), std::string::npos);
  auto without_step_size = kSlurm;
  without_step_size.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(read(without_step_size).value().size, 8);
}

TEST(LaunchEnvironment, MpirunAndSrunOnSeveralHostsHaveToBeToldWhereToMeet) {
  for (const auto& [variables, rank, size] :
       {std::tuple{with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), 0, 3},
        std::tuple{with(kSlurm, "SLURM_STEP_NUM_NODES", "2"), 5, 6}}) {
    expect_invalid(variables, "SLUICE_RENDEZVOUS", "several hosts");
    const auto launch = read(with(variables, "SLUICE_RENDEZVOUS", "tcp:first:29400"));
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    EXPECT_EQ(launch->rank, rank);
    EXPECT_EQ(launch->size, size);
    EXPECT_EQ(launch->rendezvous, "tcp:first:29400");
  }
}

TEST(LaunchEnvironment, EveryLaunchersRanksMeetAtTheRendezvousThatIsSet) {
  for (const Variables& launcher : {kTorch, kOpenMpi, kSlurm}) {
    EXPECT_EQ(read(with(launcher, "SLUICE_RENDEZVOUS", "unix:here")).value().rendezvous,
              "unix:here");
    expect_invalid(with(launcher, "SLUICE_RENDEZVOUS", "nowhere"), "SLUICE_RENDEZVOUS", "nowhere");
  }
  expect_invalid(with(with(kTorch, "SLUICE_RENDEZVOUS", "unix:here"), "RANK", "7"), "RANK", "7");
  // The place alone starts nothing.
  expect_invalid({{"SLUICE_RENDEZVOUS", "unix:here"}}, "SLUICE_SIZE", "not set");
}

TEST(LaunchEnvironment, MalformedValuesAreNamed) {
  for (const std::string value : {"x", "4", "-1", "1.5", "99999999999999999999", " 1"}) {
    expect_invalid(with(kSluice, "SLUICE_RANK", value), "SLUICE_RANK", value);
  }
  for (const std::string value : {"0", "257", "many"}) {
    expect_invalid(with(kSluice, "SLUICE_SIZE", value), "SLUICE_SIZE", value);
    expect_invalid(with(kTorch, "WORLD_SIZE", value), "WORLD_SIZE", value);
    expect_invalid(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", value), "OMPI_COMM_WORLD_SIZE", value);
    expect_invalid(with(kSlurm, "SLURM_STEP_NUM_TASKS", value), "SLURM_STEP_NUM_TASKS", value);
  }
  expect_invalid(with(kSluice, "SLUICE_RENDEZVOUS", "nowhere"), "SLUICE_RENDEZVOUS", "nowhere");
  expect_invalid(with(kTorch, "MASTER_PORT", "65535"), "MASTER_PORT", "65535");
}

TEST(LaunchEnvironment, MissingValuesAreNamed) {
  for (const Variables& complete : {kSluice, kOpenMpi}) {
    for (const auto& [name, value] : complete) {
      if (name == "OMPI_COMM_WORLD_RANK") continue;  // Without it nothing looks like mpirun.
      Variables incomplete = complete;
      incomplete.erase(name);
      const auto launch = read(incomplete);
      ASSERT_FALSE(launch.ok());
      EXPECT_NE(launch.status().message().find(name), std::string::npos)
          << launch.status().message();
    }
  }
  EXPECT_EQ(read(with(kSluice, "SLUICE_SIZE", "")).status().code(), StatusCode::invalid_argument);
  const auto nothing = read({});
  ASSERT_FALSE(nothing.ok());
  EXPECT_NE(nothing.status().message().find("no launcher"), std::string::npos);
  EXPECT_FALSE(read({{"RANK", "0"}}).ok());
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).ok());  // A batch script.
}

TEST(Environment, ReadsEveryVariableOnceAndNamesAreUnique) {
  std::map<std::string, int> asked;
  const base::Environment environment([&](const char* name) -> std::optional<std::string> {
    ++asked[name];
    return "v-" + std::string(name);
  });
  EXPECT_EQ(asked.size(), base::all_variables().size());
  for (const auto& facts : base::all_variables()) {
    EXPECT_EQ(asked[facts.name], 1) << facts.name;
    EXPECT_EQ(environment.get(facts.variable), "v-" + std::string(facts.name));
  }
}

TEST(Log, KnowsItsLevelsAndIsQuietByDefault) {
  EXPECT_EQ(base::parse_log_level("debug"), base::LogLevel::debug);
  EXPECT_EQ(base::parse_log_level("error"), base::LogLevel::error);
  EXPECT_FALSE(base::parse_log_level("WARN").has_value());
  if (base::Environment::at_start().has(base::Variable::log)) GTEST_SKIP() << "SLUICE_LOG is set";
  ::testing::internal::CaptureStderr();
  base::log_info("not {}", "seen");
  base::log_warn("seen {} {{}}", 1);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("not seen"), std::string::npos);
  EXPECT_NE(text.find("[warning] seen 1 {}"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::bootstrap
