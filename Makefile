# `make help` lists the targets. CONFIG=<yaml> picks a run, ARGS="section.field=value ..." changes it;
# CLUSTER=<yaml> picks the cluster of the infrastructure targets.

SHELL := /bin/bash
# Without brace expansion, ARGS="task.split={column:fold,test:[4]}" stays one word.
.SHELLFLAGS := +B -c
.DEFAULT_GOAL := help

#
# Variables for users. tools/make_variables.py has the table of the targets that read them.
#

PYTHON ?= python3.11
VENV := .venv
# For make gpu, on a machine that brings torch and transformers and has no network.
SYSTEM_PYTHON ?= python3

# The run file, and changes to it.
CONFIGS := workloads/seqlm/configs
CONFIG ?= $(if $(filter finetune-llm,$(MAKECMDGOALS)),$(CONFIGS)/language/llm_sample.yaml,$(strip \
	$(CONFIGS)/$(if $(filter finetune-%,$(MAKECMDGOALS)),finetune/membrane_sample,esm2_8m_sample).yaml))
ARGS ?=
# A model's folder or hub id: the start of a training, and the model of the other targets.
MODEL ?=
# The folder of a run.
NAME = $(notdir $(basename $(CONFIG)))
RUN ?= runs/$(NAME)

# Where stages run: local, slurm or eks. On a cluster: NODES= (2, or 2-3 to train), IMAGE=, or any option that
# tools.jobs submit --help lists, in SUBMIT="--time 2:00:00".
TARGET ?= local
CLUSTER ?= clusters/$(if $(filter eks,$(TARGET)),eks,slurm).yaml
NODES ?=
IMAGE ?=
SUBMIT ?=
JOB ?=

# The endpoint of make serve TARGET=eks. For cost, synth, deploy and destroy, it takes the place of the cluster.
ENDPOINT ?= endpoints/esm2.yaml
# The stacks to deploy; by default all of the file.
STACKS ?= --all
# The image to build, push or import, or the program to measure: bionemo or neuron; by default this project's own.
FRAMEWORK ?=
# Dates of make usage: begin, and end, which is excluded. For training plans: earliest start, latest end.
SINCE ?=
UNTIL ?=
# Training plans: instance type, days, name, and the offering to buy. NODES= is the number of instances.
TYPE ?=
DAYS ?=
PLAN ?=
OFFERING ?=
# Duration of make fuzz.
MINUTES ?= 10

#
# Check of the variables
#

# The environment's Python runs the check, or any python3 before there is an environment. Without both, it is skipped.
CHECKER := $(or $(wildcard $(VENV)/bin/python),$(shell command -v python3))
is_given_by = $(filter $(2),$(firstword $(origin $(1))))
ON_COMMAND_LINE := $(foreach name,$(.VARIABLES),$(if $(call is_given_by,$(name),command),$(name)))
GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))
in_quotes = '$(subst ','\'',$(1))'

ifeq ($(filter local slurm eks,$(TARGET)),)
$(error TARGET: got $(TARGET); allowed are local, slurm and eks)
endif
# The name of the first variable that is refused, and the reason.
REFUSED := $(if $(CHECKER),$(shell $(CHECKER) -IS tools/make_variables.py \
	$(call in_quotes,$(GOALS)) $(call in_quotes,$(TARGET)) $(call in_quotes,$(ON_COMMAND_LINE))))
ifneq ($(REFUSED),)
$(error $(firstword $(REFUSED))=$($(firstword $(REFUSED))): $(wordlist 2,$(words $(REFUSED)),$(REFUSED)))
endif

GIVEN_RUN := $(if $(filter-out file,$(origin RUN)),$(RUN:/=))
ifneq ($(GIVEN_RUN),)
ifneq ($(TARGET),local)
$(error RUN: got $(RUN), a folder of this machine; name a run of the cluster with CONFIG= and ARGS="name=...")
endif
ifneq ($(call is_given_by,CONFIG,command),)
$(error CONFIG, RUN: give one; RUN=$(RUN) brings its own config.yaml)
endif
endif

#
# Commands that several targets share
#

BIN := $(VENV)/bin
# The environment brings uv, and the Node.js for the CDK's command line and its Python package.
WITH_ENVIRONMENT := PATH="$(abspath $(BIN)):$$PATH"

# A stage, here or as a job. The run file here is CONFIG=, or the one that RUN=<folder of a run> has kept, with the
# run's own place.
STAGE := $(BIN)/python -m seqlm
RUN_FILE = $(if $(GIVEN_RUN),$(GIVEN_RUN)/config.yaml runs=$(dir $(GIVEN_RUN)) name=$(notdir $(GIVEN_RUN)),$(CONFIG))
# Without TARGET=, the cluster file alone decides which scheduler places jobs.
jobs = $(BIN)/python -m tools.jobs $(1) --cluster $(CLUSTER) $(if $(filter-out local,$(TARGET)),--target $(TARGET))
submit = $(call jobs,submit $(1)) $(if $(NODES),--nodes $(NODES)) $(if $(IMAGE),--image $(IMAGE)) $(SUBMIT)
ifeq ($(TARGET),local)
stage = $(STAGE) $(1) --config $(RUN_FILE)
else
stage = $(call submit,$(1)) --config $(CONFIG)
endif
start_from = $(if $(MODEL),model.init_from=$(MODEL))
use_model = $(if $(MODEL),inference.model=$(MODEL))
# If the run does not exist, one line lists those that do.
RUNS_HERE = $(patsubst %/config.yaml,%,$(wildcard runs/*/config.yaml))
find_run = $(if $(GIVEN_RUN),@test -r $(GIVEN_RUN)/config.yaml || { \
	echo "RUN: $(RUN) has no config.yaml; runs here: $(or $(RUNS_HERE),none)" >&2; exit 2; })

# The CDK. Node.js keeps what it has compiled of it.
WITH_NODE := $(WITH_ENVIRONMENT) NODE_COMPILE_CACHE="$${NODE_COMPILE_CACHE:-$(CURDIR)/node_modules/.cache/compiled}"
GIVEN_ENDPOINT := $(if $(findstring command line,$(origin ENDPOINT)),$(ENDPOINT))
CDK = $(WITH_NODE) node node_modules/aws-cdk/bin/cdk \
	--context $(if $(GIVEN_ENDPOINT),endpoint=$(GIVEN_ENDPOINT),cluster=$(CLUSTER))
STACK_TOOL = $(WITH_NODE) $(BIN)/python -m tools.stacks.deploy --cluster $(CLUSTER)
CREDENTIALS = $(BIN)/python -m tools.stacks.credentials $(ARGS)
# The one stack that make destroy deletes; the others stay.
CLUSTER_STACK = $(if $(shell grep -E '^scheduler: *["'\'']?eks' $(CLUSTER)),EksHyperPodStack,SlurmHyperPodStack)
STACK = $(if $(GIVEN_ENDPOINT),EndpointStack,$(CLUSTER_STACK))

#
# Environments
#

READY := $(VENV)/.ready
CDK_READY := node_modules/.ready
AWSCLI_READY := .venv-awscli/.ready
BIOTRAINER_READY := .venv-biotrainer/.ready
CHECKOV_READY := .venv-checkov/.ready
HYPERPOD_READY := .venv-hyperpod/.ready
OLDEST_READY := .venv-oldest/.ready
XLA_READY := .venv-xla/.ready
# Installs the lock $(2) into the environment in the folder $(1): what it lists, with these hashes, and nothing else.
install_lock = $(WITH_ENVIRONMENT) $(1)/bin/python docker/install_with_uv.py --quiet --no-deps --require-hashes --requirement $(2)
TORCH_LOCKS := environments/torch.lock environments/torch-cpu.lock
install_torch = $(WITH_ENVIRONMENT) docker/install_torch.sh $(1)/bin/python

# Rebuilt when the pins change. The marker comes last, so a broken install is not taken for a whole one.
$(READY): requirements.lock $(TORCH_LOCKS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 (Debian/Ubuntu: apt-get install python3.11 python3.11-venv), or name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make environments: install its venv package (Debian/Ubuntu: apt-get install python3.11-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V), the pins are for Python 3.11: name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(call install_lock,$(VENV),requirements.lock)
	$(call install_torch,$(VENV))
	@# The checkout's own package, in editable form; hatchling is in the lock.
	$(WITH_ENVIRONMENT) $(BIN)/python docker/install_with_uv.py --quiet --no-deps --no-index --no-build-isolation --editable .
	@# It was in requirements.txt once, and would go before the user's own version.
	@$(BIN)/pip uninstall --quiet --quiet --yes awscli
	@touch $@

# Environments beside .venv, one for each environments/<name>.txt. A comment in that file has the reason.
.venv-%/.ready: environments/%.lock
	$(PYTHON) -m venv .venv-$*
	$(BEFORE_INSTALL)
	$(call install_lock,.venv-$*,$<)
	$(AFTER_INSTALL)
	@touch $@

# make test-oldest PYTHON=python3.12 works without .venv.
$(AWSCLI_READY) $(BIOTRAINER_READY) $(CHECKOV_READY) $(HYPERPOD_READY) $(XLA_READY): $(READY)

# Its own torch comes first on Python's path; everything else is that of .venv.
SITE_PACKAGES := lib/python3.11/site-packages
AFTER_INSTALL :=
BEFORE_INSTALL :=
$(XLA_READY): AFTER_INSTALL = echo "$(abspath $(VENV))/$(SITE_PACKAGES)" > .venv-xla/$(SITE_PACKAGES)/shared.pth
# It has the torch of .venv.
$(BIOTRAINER_READY): $(TORCH_LOCKS)
$(BIOTRAINER_READY): BEFORE_INSTALL = $(call install_torch,.venv-biotrainer)

# A folder of packages for Python's path, not an environment.
$(HYPERPOD_READY): environments/hyperpod.lock
	rm -rf .venv-hyperpod
	$(call install_lock,$(VENV),$<) --target .venv-hyperpod
	@touch $@

$(CDK_READY): package-lock.json $(READY)
	$(WITH_NODE) npm ci --silent --no-audit --no-fund
	@touch $@

##@ Biologist: train, fine-tune, use

.PHONY: help env data train-ddp train-fsdp finetune-lora finetune-llm finetune-table train-bionemo convert-bionemo
.PHONY: evaluate serve embed predict variants propose contacts scorecard layers explore publish report check
.PHONY: runs compare status tail cancel fetch

help: ## this list
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'CONFIG=esm2_650m selects a run of workloads/seqlm/configs, ARGS="optim.lr=2e-4"'
	@echo 'changes it. CLUSTER=clusters/<cluster>.yaml selects a cluster; TARGET=slurm or'
	@echo 'eks runs stages and bandwidth there.'

env: $(READY) ## the Python environment in .venv; other targets create it

data: $(READY) ## prepare data.source of the run file in its data.path
	$(call stage,data) $(ARGS)

train-ddp: $(READY) ## pre-train, with a copy of the model on each device
	$(call stage,train) parallel.mode=ddp $(start_from) $(ARGS)

train-fsdp: $(READY) ## the same with a sharded model (FSDP2), as <run>_fsdp
	$(call stage,train) parallel.mode=fsdp name=$(NAME)_fsdp $(start_from) $(ARGS)

finetune-lora: $(READY) ## train for the task of CONFIG=.../configs/finetune/<task>
	@test ! -r $(CONFIG) || grep -q '^task:' $(CONFIG) || \
		{ echo "CONFIG: $(CONFIG) has no task: to fine-tune for; $(CONFIGS)/finetune has examples" >&2; exit 2; }
	$(call stage,train) $(start_from) $(ARGS)

finetune-llm: $(READY) ## fine-tune a causal language model on questions
	@test ! -r $(CONFIG) || grep -q '^chat:' $(CONFIG) || \
		{ echo "CONFIG: $(CONFIG) has no chat: to fine-tune on; workloads/seqlm/configs/language has examples" >&2; exit 2; }
	$(call stage,train) $(start_from) $(ARGS)

finetune-table: $(READY) ## time, scores, memory of each memory-saving method
	$(STAGE).proteins.finetune.method_table --config $(CONFIG) $(start_from) $(ARGS)

train-bionemo: $(READY) ## the same run file by NVIDIA BioNeMo (docs/bionemo.md)
	$(call stage,train-bionemo) $(ARGS)

convert-bionemo: $(READY) ## its checkpoints to and from transformers' format
	$(call stage,convert-bionemo) $(ARGS)

evaluate: $(READY) ## score RUN=runs/<name>, CONFIG=, or MODEL= on its data
	$(find_run)
	$(call stage,evaluate) $(if $(MODEL),$(use_model),$(if $(GIVEN_RUN),inference.model=$(GIVEN_RUN)/model)) $(ARGS)

serve: $(READY) ## answer with MODEL=<folder> on port 8080; or TARGET=eks
ifeq ($(TARGET),eks)
	$(BIN)/python -m tools.jobs.kubernetes.serve --cluster $(CLUSTER) --endpoint $(ENDPOINT) \
		$(if $(MODEL),--model $(MODEL)) $(if $(IMAGE),--image $(IMAGE)) $(SUBMIT) $(ARGS)
else ifeq ($(TARGET),slurm)
	$(error TARGET: got slurm; a model is served on this machine, by pods (TARGET=eks) or by SageMaker (docs/serving.md))
else
	$(if $(MODEL),$(if $(GIVEN_RUN),$(error MODEL, RUN: give one; RUN=$(RUN) serves $(RUN)/model)))
	$(find_run)
	$(STAGE) serve --model $(or $(MODEL),$(RUN)/model) $(ARGS)
endif

embed: $(READY) ## embeddings of inference.input= by RUN= or MODEL=
	$(find_run)
	$(call stage,embed) $(use_model) $(ARGS)

predict: $(READY) ## labels by the fine-tuned RUN=, CONFIG= or MODEL=
	$(find_run)
	$(call stage,predict) $(use_model) $(ARGS)

variants: $(READY) ## masked marginals of inference.mutations=, or of all
	$(find_run)
	$(call stage,variants) $(use_model) $(ARGS)

propose: $(READY) ## variants to measure next, from propose.measured=
	$(find_run)
	$(call stage,propose) $(use_model) $(ARGS)

contacts: $(READY) ## contacts of inference.input=, as matrices and pictures
	$(find_run)
	$(call stage,contacts) $(use_model) $(ARGS)

scorecard: $(READY) ## what RUN= or MODEL= knows, as a page and JSON
	$(find_run)
	$(call stage,scorecard) $(use_model) $(ARGS)

layers: $(READY) ## which layer and pooling of MODEL= suits CONFIG='s table
	$(call stage,layers) $(use_model) $(ARGS)

explore: $(READY) ## a map of RUN='s embeddings; ARGS="explore.label=..."
	$(find_run)
	$(call stage,explore) $(use_model) $(ARGS)

publish: $(READY) ## a folder for the Hugging Face Hub, or a push to it
	$(find_run)
	$(call stage,publish) $(use_model) $(ARGS)

report: $(READY) ## draw the report of RUN=runs/<name> again, at any time
	$(STAGE) report $(RUN)

runs: $(READY) ## list runs here; ARGS="--state failed"
	@$(STAGE) runs $(ARGS)

compare: $(READY) ## what differs between ARGS="<run> <run>", and scores
	@$(STAGE) compare $(ARGS)

check: $(READY) ## what is read of files, and its faults; ARGS="a.csv b.fa"
	$(STAGE) check $(ARGS)

status: $(READY) ## jobs on the cluster, and how far they are
	@$(call jobs,status) $(ARGS)

tail: $(READY) ## the log of JOB=<number>, or of the last job, to its end
	@$(call jobs,tail) $(JOB) $(ARGS)

cancel: $(READY) ## have JOB=<number> save and end
	@$(call jobs,cancel) $(JOB) $(ARGS)

fetch: $(READY) ## bring results and model of a job (or JOB=) into runs/
	@$(call jobs,fetch) $(JOB) $(ARGS)

##@ Platform engineer: plan, deploy, operate, pay

.PHONY: synth bootstrap deploy diff preflight cost plan usage prices mirror-downloads charts
.PHONY: plans-search plans-list plans-buy plans-extend
.PHONY: connect logs apply-lifecycle replace reboot health-check move patch
.PHONY: migrate destroy teardown image push bandwidth

synth: $(CDK_READY) ## templates of the cluster's stacks, in cdk.out
	$(CDK) synth --quiet 2> >(grep -v '^Supply a stack id' >&2)

bootstrap: $(CDK_READY) ## once per account and region: what the CDK deploys with
	@$(STACK_TOOL) bootstrap $(ARGS)

deploy: $(CDK_READY) ## deploy all stacks of CLUSTER=, or those of STACKS=
ifneq ($(GIVEN_ENDPOINT),)
	@$(CREDENTIALS)
	$(CDK) deploy $(STACKS) $(ARGS)
else
	@$(STACK_TOOL) deploy $(STACKS) $(ARGS)
endif

diff: $(CDK_READY) ## what deploy would change; warns if data would be lost
	$(WITH_NODE) $(BIN)/python -m tools.stacks.diff --cluster $(CLUSTER) $(ARGS)

preflight: $(READY) ## check quotas, zones, plans, names before money is spent
	$(WITH_NODE) $(BIN)/python -m tools.preflight --cluster $(CLUSTER) $(ARGS)

cost: $(READY) ## USD a month of CLUSTER= or ENDPOINT=; ARGS="hours=200"
	@$(BIN)/python -m tools.cost --cluster $(CLUSTER) \
		$(if $(GIVEN_ENDPOINT),--endpoint $(GIVEN_ENDPOINT)) $(ARGS)

plan: $(READY) ## memory, days, USD of CONFIG= on CLUSTER=; ARGS="--co2"
	@$(BIN)/python -m tools.plan --config $(CONFIG) --cluster $(CLUSTER) $(ARGS)

usage: $(READY) ## GPU hours, USD by team, user, job; SINCE= UNTIL= (dates)
	@$(BIN)/python -m tools.usage --cluster $(CLUSTER) $(if $(filter-out local,$(TARGET)),--target $(TARGET)) \
		$(if $(SINCE),--since $(call in_quotes,$(SINCE))) $(if $(UNTIL),--until $(call in_quotes,$(UNTIL))) $(ARGS)

# The value of a variable as an option, if there is one.
option = $(if $(2),$(1) $(call in_quotes,$(2)))
plans = $(BIN)/python -m tools.training_plans $(1) --cluster $(CLUSTER) $(call option,--type,$(TYPE)) \
	$(call option,--nodes,$(NODES)) $(call option,--days,$(DAYS)) $(call option,--since,$(SINCE)) \
	$(call option,--until,$(UNTIL)) $(call option,--plan,$(PLAN)) $(call option,--offering,$(OFFERING)) $(ARGS)

plans-search: $(READY) ## training plans of TYPE= NODES= DAYS=; extensions of PLAN
	@$(call plans,search)

plans-list: $(READY) ## the account's training plans: state, end, capacity
	@$(call plans,list)

plans-buy: $(READY) ## buy OFFERING= as PLAN=, after you type the amount
	@$(call plans,buy)

plans-extend: $(READY) ## extend PLAN= by OFFERING=, after you type the amount
	@$(call plans,extend)

prices: $(READY) ## fetch the prices of REGION=, or of the cluster's region
	$(BIN)/python -m tools.cost.prices --cluster $(CLUSTER) $(if $(REGION),--region $(REGION)) $(ARGS)

mirror-downloads: $(READY) ## without internet: put what nodes fetch into the bucket
	$(BIN)/python -m tools.images.mirror_downloads --cluster $(CLUSTER) $(ARGS)

charts: $(READY) ## for EKS: the pinned Helm charts, in .charts
	@$(BIN)/python -m tools.kubernetes.charts $(ARGS)

connect: $(READY) ## a shell on NODE=<group>-<n>; on EKS a kubeconfig
	$(BIN)/python -m tools.nodes.connect --cluster $(CLUSTER) $(NODE) $(ARGS)

logs: $(READY) ## log of the setup of all nodes, or NODE=<group>-<n>
	$(BIN)/python -m tools.nodes.logs --cluster $(CLUSTER) $(NODE) $(ARGS)

apply-lifecycle: $(READY) ## run the deployed scripts again on existing nodes
	$(BIN)/python -m tools.nodes.apply_lifecycle --cluster $(CLUSTER) $(ARGS)

# Each says what happens to running jobs and asks for confirmation; ARGS=--yes confirms.
act_on_nodes = $(BIN)/python -m tools.nodes.actions $(1) $(NODE) --cluster $(CLUSTER) $(if $(TO),--to $(TO)) $(ARGS)

replace: $(READY) ## new hardware for NODE=, after its jobs
	@$(call act_on_nodes,replace)

reboot: $(READY) ## restart NODE=, after its jobs
	@$(call act_on_nodes,reboot)

health-check: $(READY) ## deep health checks of NODE=, after its jobs
	@$(call act_on_nodes,health-check)

move: $(READY) ## on EKS: NODE= to group TO=, or TO=<cluster>/<group>
	@$(call act_on_nodes,move)

# It says what happens to running jobs and asks for confirmation; ARGS=--yes confirms.
patch: $(READY) ## another image for GROUP=, in batches of rolling_update
	@$(BIN)/python -m tools.nodes.patch $(GROUP) --cluster $(CLUSTER) $(ARGS)

migrate: $(READY) ## data, homes, accounting from FROM= to TO=; plans first
	@$(BIN)/python -m tools.migrate $(if $(FROM),--from $(FROM)) $(if $(TO),--to $(TO)) $(ARGS)

destroy: $(CDK_READY) ## stop compute; storage and network stay, and bill
ifneq ($(GIVEN_ENDPOINT),)
	@$(CREDENTIALS)
	$(CDK) destroy $(STACK) $(ARGS)
else
	@$(STACK_TOOL) destroy $(STACK) $(ARGS)
endif

teardown: $(CDK_READY) ## destroy everything in order, and name what is kept
	$(WITH_NODE) $(BIN)/python -m tools.stacks.teardown --cluster $(CLUSTER) $(ARGS)

image: $(READY) ## build the commit's image; TARGET=slurm: and push it
ifeq ($(TARGET),slurm)
	@$(BIN)/python -m tools.images.import_image --cluster $(CLUSTER) $(if $(FRAMEWORK),--framework $(FRAMEWORK)) $(ARGS)
else
	$(BIN)/python -m tools.images.build $(if $(FRAMEWORK),--framework $(FRAMEWORK)) $(ARGS)
endif

push: $(READY) ## push it to the cluster's repository; prints its digest
	@$(BIN)/python -m tools.images.build --push --cluster $(CLUSTER) $(if $(FRAMEWORK),--framework $(FRAMEWORK)) $(ARGS)

bandwidth: $(READY) ## measure all-reduces over nodes, or over the GPUs here
ifneq ($(TARGET),local)
	$(call submit,bandwidth) $(ARGS)
else
	$(if $(ARGS),$(error ARGS: got $(ARGS); here all-reduces are measured and nothing is expected of them: TARGET=slurm))
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node=auto \
		-m seqlm.launch.network.bandwidth --to runs/bandwidth
endif

##@ Developer: test, lint, measure

.PHONY: schema golden lock bench gpu bench-data bench-inference bench-serve bench-growth
.PHONY: test test-all test-cluster fuzz test-image test-xla test-biotrainer test-oldest lint format clean

schema: $(READY) ## JSON schemas of cluster and run files, for editors
	$(BIN)/python -m config.reading.schema
	$(STAGE) --write-schema

golden: $(READY) ## write the expected templates again
	$(WITH_NODE) $(BIN)/python -m tests.golden.write

lock: $(READY) ## versions and hashes of all Python packages
	$(WITH_ENVIRONMENT) docker/lock.sh $(ARGS)

bench: $(READY) ## speed next to transformers' Trainer; FRAMEWORK=bionemo
	$(BIN)/python -m benchmarks.$(if $(filter bionemo,$(FRAMEWORK)),bionemo,acceptance --stages versus --out runs/bench) $(ARGS)

gpu: ## every benchmark on one GPU, by SYSTEM_PYTHON=python3
	PYTHONPATH=$(CURDIR)/workloads $(SYSTEM_PYTHON) -m benchmarks.acceptance $(ARGS)

bench-data: $(READY) ## data preparation, next to transformers and pyfastx
	$(BIN)/python -m benchmarks.acceptance --stages data $(ARGS)

bench-inference: $(READY) ## embeddings/s, next to transformers' pipeline
	$(BIN)/python -m benchmarks.acceptance --stages embed $(ARGS)

bench-serve: $(READY) ## response times of a server with 1, 8 and 64 users
	$(BIN)/python -m benchmarks.acceptance --stages serve $(ARGS)

bench-growth: $(READY) ## cost by size, and what follows for larger sizes
	$(WITH_NODE) OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.growth $(ARGS)

PYTEST = $(WITH_NODE) $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
test: $(READY) $(CDK_READY) ## every module's tests: five minutes on two cores
	$(PYTEST) -m 'not long' $(ARGS)

test-all: $(READY) $(CDK_READY) $(CHECKOV_READY) $(HYPERPOD_READY) ## every test that needs neither root nor cloud nor GPU
	$(PYTEST) $(ARGS)

test-cluster: $(READY) $(AWSCLI_READY) ## a real Slurm of five machines (root, Debian 12)
	tests/cluster/install_packages.sh
	$(BIN)/python -m pytest tests/cluster $(ARGS)

fuzz: $(READY) ## tests/fuzz with new seeds for MINUTES=10, under load
	@$(BIN)/python -m tests.fuzz.soak --minutes $(MINUTES) & soak=$$!; \
	FUZZ_SECONDS=$$((60 * $(MINUTES))) $(BIN)/python -m pytest tests/fuzz --timeout 0 $(ARGS); fuzz=$$?; \
	wait $$soak && exit $$fuzz

# Its name keeps it out of make test, which needs no root.
test-image: $(READY) ## the Dockerfile on a stand-in base (root, Debian/Ubuntu)
	@[ "$$(id -u)" = 0 ] || { echo "buildah needs root here: sudo make test-image" >&2; exit 1; }
	@command -v buildah >/dev/null || { apt-get update --quiet --quiet && apt-get install --yes --quiet --quiet --no-install-recommends buildah; }
	$(BIN)/python -m pytest tests/docker/image_build.py $(ARGS)

test-xla: $(XLA_READY) ## training for Trainium on torch_xla's CPU device
	PYTHONPATH=$(CURDIR)/workloads OMP_NUM_THREADS=1 .venv-xla/bin/python -m pytest tests/workloads/training/test_xla.py tests/workloads/launch/test_torchrun.py $(ARGS)

test-biotrainer: $(BIOTRAINER_READY) ## biotrainer reads our model folders, and embeds alike
	PYTHONPATH=$(CURDIR)/workloads $(BIN)/python -m pytest tests/biotrainer $(ARGS)

test-oldest: $(OLDEST_READY) ## the model with the oldest versions of packages (5.5 GB)
	PYTHONPATH=$(CURDIR)/workloads OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest $(addprefix tests/workloads/proteins/test_,attention.py model.py pretrained.py) \
		$(addprefix tests/workloads/training/test_,packing.py modes.py parallel.py resuming.py) \
		tests/workloads/language/test_grouped_attention.py tests/workloads/proteins/families $(ARGS)

lint: $(READY) ## ruff, mypy, shellcheck, hadolint, English of documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck .ci/run $$(find docker lifecycle tests tools -name '*.sh') workloads/seqlm/launch/train.sbatch
	$(BIN)/hadolint workloads/Dockerfile docker/*/Dockerfile
	$(BIN)/python -m tools.documents.prose

format: $(READY) ## rewrite the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environments; data, runs, downloads stay
	rm -rf $(VENV) .venv-awscli .venv-biotrainer .venv-checkov .venv-hyperpod .venv-oldest .venv-xla
	rm -rf node_modules cdk.out
