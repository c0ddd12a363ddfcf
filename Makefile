# `make help` lists the targets. CONFIG=<yaml> picks a run, ARGS="section.field=value ..." changes it;
# CLUSTER=<yaml> picks the cluster of the infrastructure targets.

SHELL := /bin/bash
# Without brace expansion, ARGS="task.split={column:fold,test:[4]}" stays one word.
.SHELLFLAGS := +B -c
PYTHON ?= python3.11
# For make gpu, on a machine that brings torch and transformers and has no network.
SYSTEM_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONFIGS = workloads/seqlm/configs
CONFIG ?= $(if $(filter finetune-llm,$(MAKECMDGOALS)),workloads/seqlm/configs/language/llm_sample.yaml,$(strip \
	$(CONFIGS)/$(if $(filter finetune-%,$(MAKECMDGOALS)),finetune/membrane_sample,esm2_8m_sample).yaml))
ARGS ?=
NAME = $(notdir $(basename $(CONFIG)))
RUN ?= runs/$(NAME)
STAGE = $(BIN)/python -m seqlm
CLUSTER ?= clusters/$(if $(filter eks,$(TARGET)),eks,slurm).yaml
# On a cluster: TARGET=slurm or eks, and NODES= (2, or 2-3 to train), IMAGE=, or any option that
# tools.jobs submit --help lists, in SUBMIT="--time 2:00:00".
TARGET ?= local
NODES ?=
IMAGE ?=
SUBMIT ?=
# Whose image is built, pushed or imported, and whose speed is measured: ours, or bionemo, or neuron.
FRAMEWORK ?=
JOB ?=
# A model's folder or hub id: what training starts from, and what the other targets use.
MODEL ?=
# For serve on EKS.
ENDPOINT ?= endpoints/esm2.yaml
# Minutes for which fuzz runs.
MINUTES ?= 10
# Without TARGET= the cluster file alone says who places jobs.
jobs = $(BIN)/python -m tools.jobs $(1) --cluster $(CLUSTER) $(if $(filter-out local,$(TARGET)),--target $(TARGET))
CDK_READY := node_modules/.ready
# An endpoint in place of a cluster, for cost, deploy and destroy; serve has a default.
GIVEN_ENDPOINT = $(if $(findstring command line,$(origin ENDPOINT)),$(ENDPOINT))
# What `cdk destroy` names: it leaves the others. All of the file's stacks are what is deployed, unless STACKS= names some.
STACK = $(if $(GIVEN_ENDPOINT),EndpointStack,$(if $(shell grep -E '^scheduler: *["'\'']?eks' $(CLUSTER)),EksHyperPodStack,SlurmHyperPodStack))
STACKS ?= --all
CDK = $(NODE_HERE) node node_modules/aws-cdk/bin/cdk --context $(if $(GIVEN_ENDPOINT),endpoint=$(GIVEN_ENDPOINT),cluster=$(CLUSTER))
CREDENTIALS = $(BIN)/python -m tools.stacks.credentials $(ARGS)
STACK_TOOL = $(NODE_HERE) $(BIN)/python -m tools.stacks.deploy --cluster $(CLUSTER)
AWSCLI_READY := .venv-awscli/.ready
CHECKOV_READY := .venv-checkov/.ready
HYPERPOD_READY := .venv-hyperpod/.ready
XLA_READY := .venv-xla/.ready
OLDEST_READY := .venv-oldest/.ready
BIOTRAINER_READY := .venv-biotrainer/.ready
# The environment brings the Node.js that the CDK's command line and its Python package run on.
# Node.js keeps what it has compiled of the CDK.
NODE_HERE = PATH="$(CURDIR)/$(BIN):$$PATH" NODE_COMPILE_CACHE="$${NODE_COMPILE_CACHE:-$(CURDIR)/node_modules/.cache/compiled}"

submit = $(call jobs,submit $(1)) \
	$(if $(NODES),--nodes $(NODES)) $(if $(IMAGE),--image $(IMAGE)) $(SUBMIT)

# The run file: CONFIG=, or the one that RUN=<folder of a run> has kept, with the run's own place.
GIVEN_RUN = $(if $(filter-out file,$(origin RUN)),$(RUN:/=))
RUN_FILE = $(if $(GIVEN_RUN),$(GIVEN_RUN)/config.yaml runs=$(dir $(GIVEN_RUN)) name=$(notdir $(GIVEN_RUN)),$(CONFIG))
ifeq ($(TARGET),local)
stage = $(STAGE) $(1) --config $(RUN_FILE)
else ifneq ($(filter slurm eks,$(TARGET)),)
stage = $(call submit,$(1)) --config $(CONFIG)
$(if $(GIVEN_RUN),$(error RUN: got $(RUN), a folder of this machine; name a run of the cluster with CONFIG= and ARGS="name=..."))
else
$(error TARGET: got $(TARGET); allowed are local, slurm and eks)
endif
$(if $(GIVEN_RUN),$(if $(filter command,$(firstword $(origin CONFIG))),$(error CONFIG, RUN: give one; RUN=$(RUN) brings its own config.yaml)))
# A run that does not exist is one line, with those that do.
find_run = $(if $(GIVEN_RUN),@test -r $(GIVEN_RUN)/config.yaml || { echo "RUN: $(RUN) has no config.yaml; runs here: \
$(or $(patsubst %/config.yaml,%,$(wildcard runs/*/config.yaml)),none)" >&2; exit 2; })
start_from = $(if $(MODEL),model.init_from=$(MODEL))
use_model = $(if $(MODEL),inference.model=$(MODEL))
ifneq ($(TARGET),local)
$(foreach goal,$(filter report explore publish bench gpu bench-data bench-inference bench-serve finetune-table,$(MAKECMDGOALS)),\
	$(error TARGET=$(TARGET): $(goal) runs on this machine alone; for a run of the cluster make fetch comes first))
endif

.DEFAULT_GOAL := help

# Which targets read a variable, beside PYTHON and VENV. What none of the targets reads is refused, so that no one
# waits for a run, or for a cluster, that is not the one they named.
LOCAL := $(filter local,$(TARGET))
STAGES := data train-ddp train-fsdp train-bionemo convert-bionemo finetune-lora finetune-llm evaluate embed predict variants contacts scorecard layers
FOR_JOBS := status tail cancel fetch
FOR_CDK := synth bootstrap deploy diff destroy teardown
READ_CONFIG := $(STAGES) explore publish finetune-table plan
READ_RUN := evaluate embed predict variants contacts scorecard explore publish report serve
READ_TARGET := $(STAGES) bandwidth serve image $(FOR_JOBS)
READ_CLUSTER := $(FOR_JOBS) $(FOR_CDK) preflight cost plan prices mirror-downloads connect logs apply-lifecycle push \
	$(if $(LOCAL),,$(STAGES) bandwidth serve $(if $(filter slurm,$(TARGET)),image))
READ_NODES := $(if $(LOCAL),,$(STAGES) bandwidth)
READ_IMAGE := $(READ_NODES) $(if $(LOCAL),,serve)
READ_SUBMIT := $(READ_IMAGE)
READ_JOB := tail cancel fetch
READ_MODEL := train-ddp train-fsdp finetune-lora finetune-llm finetune-table evaluate embed predict variants contacts scorecard layers explore publish serve
READ_ENDPOINT := cost synth deploy destroy $(if $(LOCAL),,serve)
READ_STACKS := deploy
READ_FRAMEWORK := bench image push
READ_NODE := connect logs
READ_REGION := prices
READ_SYSTEM_PYTHON := gpu
READ_MINUTES := fuzz
# All but these.
NO_ARGS := help env report synth schema golden lint format clean
READ_ARGS := $(filter-out $(NO_ARGS),$(MAKECMDGOALS))
GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))
VARIABLES := ARGS CONFIG CLUSTER TARGET NODES IMAGE SUBMIT RUN JOB MODEL ENDPOINT STACKS FRAMEWORK NODE REGION MINUTES SYSTEM_PYTHON
READ := $(strip $(foreach name,$(VARIABLES),$(if $(filter $(GOALS),$(READ_$(name))),$(name))) PYTHON VENV)
given = $(filter $(2),$(firstword $(origin $(1))))
$(foreach name,$(filter-out $(READ),$(.VARIABLES)),$(if $(call given,$(name),command $(if $(filter $(name),$(VARIABLES)),environment)),\
	$(error $(name)=$($(name)): make $(GOALS) does not read $(name); it reads $(READ))))
.PHONY: help env data train-ddp train-fsdp train-bionemo convert-bionemo finetune-lora finetune-llm finetune-table evaluate serve embed predict variants contacts scorecard layers explore publish \
	bandwidth report status tail cancel fetch bench gpu bench-data bench-inference bench-serve \
	cost prices plan \
	synth bootstrap deploy diff preflight mirror-downloads charts connect logs apply-lifecycle destroy teardown \
	schema golden lock image push test test-all fuzz test-cluster test-image test-xla test-biotrainer test-oldest lint format clean

##@ Biologist: train, fine-tune, use

help: ## this list
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'CONFIG=esm2_650m selects a run of workloads/seqlm/configs, ARGS="optim.lr=2e-4"'
	@echo 'changes it. CLUSTER=clusters/<cluster>.yaml selects a cluster; TARGET=slurm or'
	@echo 'eks runs stages and bandwidth there.'

env: $(READY) ## the Python environment in .venv; other targets create it

# Rebuilt when the pins change. The marker comes last, so a broken install is not taken for a whole one.
$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 (Debian/Ubuntu: apt-get install python3.11 python3.11-venv), or name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make environments: install its venv package (Debian/Ubuntu: apt-get install python3.11-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V), the pins are for Python 3.11: name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements.lock
	@# Not locked: its wheel depends on the machine (CPU or CUDA).
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.txt)
	@# The checkout's own package, in editable form; hatchling is in the lock.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation --editable .
	@# It was in requirements.txt once, and would go before the user's own version.
	@$(BIN)/pip uninstall --quiet --quiet --yes awscli
	@touch $@

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

status: $(READY) ## jobs on the cluster, and how far they are
	@$(call jobs,status) $(ARGS)

tail: $(READY) ## the log of JOB=<number>, or of the last job, to its end
	@$(call jobs,tail) $(JOB) $(ARGS)

cancel: $(READY) ## have JOB=<number> save and end
	@$(call jobs,cancel) $(JOB) $(ARGS)

fetch: $(READY) ## bring results and model of a job (or JOB=) into runs/
	@$(call jobs,fetch) $(JOB) $(ARGS)

$(CDK_READY): package-lock.json $(READY)
	$(NODE_HERE) npm ci --silent --no-audit --no-fund
	@touch $@

# Not in .venv, where an activated environment would put it before the user's own version.
$(AWSCLI_READY): requirements-awscli.txt $(READY)
	$(PYTHON) -m venv .venv-awscli
	.venv-awscli/bin/pip install --quiet --disable-pip-version-check --requirement requirements-awscli.txt
	@touch $@

# checkov pins other versions of the AWS SDK, so it has an environment of its own.
$(CHECKOV_READY): requirements-checkov.txt $(READY)
	$(PYTHON) -m venv .venv-checkov
	.venv-checkov/bin/pip install --quiet --disable-pip-version-check --requirement requirements-checkov.txt
	@touch $@

# HyperPod's agent pins an older torch than it needs: it comes without its requirements, in a folder of its own.
$(HYPERPOD_READY): requirements-hyperpod.txt $(READY)
	rm -rf .venv-hyperpod
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .venv-hyperpod \
		--requirement requirements-hyperpod.txt
	@touch $@

# Its own torch comes first on Python's path; the rest is that of .venv. torch brings 6 GB of CUDA's libraries.
$(XLA_READY): requirements-xla.txt $(READY)
	$(PYTHON) -m venv .venv-xla
	.venv-xla/bin/pip install --quiet --disable-pip-version-check --requirement requirements-xla.txt
	echo "$(CURDIR)/$(VENV)/lib/python3.11/site-packages" > .venv-xla/lib/python3.11/site-packages/shared.pth
	@touch $@

# Its torch brings 5.5 GB of CUDA's libraries. PYTHON=python3.12 makes it of that one.
$(OLDEST_READY): requirements-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check --requirement requirements-oldest.txt
	@touch $@

$(BIOTRAINER_READY): requirements-biotrainer.txt $(READY)
	$(PYTHON) -m venv .venv-biotrainer
	.venv-biotrainer/bin/pip install --quiet --disable-pip-version-check --requirement requirements-biotrainer.txt
	@touch $@

##@ Platform engineer: plan, deploy, operate, pay

synth: $(CDK_READY) ## templates of the cluster's stacks, in cdk.out
	$(CDK) synth --quiet 2> >(grep -v '^Supply a stack id' >&2)

bootstrap: $(CDK_READY) ## once per account and region: what the CDK deploys with
	@$(CREDENTIALS)
	$(CDK) bootstrap $(ARGS)

deploy: $(CDK_READY) ## deploy all stacks of CLUSTER=, or those of STACKS=
ifneq ($(GIVEN_ENDPOINT),)
	@$(CREDENTIALS)
	$(CDK) deploy $(STACKS) $(ARGS)
else
	@$(STACK_TOOL) deploy $(STACKS) $(ARGS)
endif

diff: $(CDK_READY) ## what deploy would change; warns if data would be lost
	$(NODE_HERE) $(BIN)/python -m tools.stacks.diff --cluster $(CLUSTER) $(ARGS)

preflight: $(READY) ## check quotas, zones, plans, names before money is spent
	$(NODE_HERE) $(BIN)/python -m tools.preflight --cluster $(CLUSTER) $(ARGS)

cost: $(READY) ## USD a month of CLUSTER= or ENDPOINT=; ARGS="hours=200"
	@$(BIN)/python -m tools.cost --cluster $(CLUSTER) \
		$(if $(GIVEN_ENDPOINT),--endpoint $(GIVEN_ENDPOINT)) $(ARGS)

plan: $(READY) ## memory, days, USD of CONFIG= on CLUSTER=; ARGS="--co2"
	@$(BIN)/python -m tools.plan --config $(CONFIG) --cluster $(CLUSTER) $(ARGS)

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

destroy: $(CDK_READY) ## stop compute; storage and network stay, and bill
ifneq ($(GIVEN_ENDPOINT),)
	@$(CREDENTIALS)
	$(CDK) destroy $(STACK) $(ARGS)
else
	@$(STACK_TOOL) destroy $(STACK) $(ARGS)
endif

teardown: $(CDK_READY) ## destroy everything in order, and name what is kept
	$(NODE_HERE) $(BIN)/python -m tools.stacks.teardown --cluster $(CLUSTER) $(ARGS)

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

schema: $(READY) ## JSON schemas of cluster and run files, for editors
	$(BIN)/python -m config.reading.schema
	$(STAGE) --write-schema

golden: $(READY) ## write the expected templates again
	$(NODE_HERE) $(BIN)/python -m tests.golden.write

lock: $(READY) ## versions and hashes of all Python packages
	PATH="$(CURDIR)/$(BIN):$$PATH" docker/lock.sh $(ARGS)

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

PYTEST = $(NODE_HERE) $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
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
	rm -rf $(VENV) .venv-awscli .venv-checkov .venv-hyperpod .venv-oldest .venv-xla node_modules cdk.out
