/*
 * The options of srun that HyperPod's image adds and Debian's Slurm lacks: pyxis's of containers, and HyperPod's own
 * --auto-resume. They are accepted and do nothing: the step runs without a container.
 */
#include <slurm/spank.h>
#include <stddef.h>

SPANK_PLUGIN(pyxis, 1)

static int accept(int value, const char *argument, int remote)
{
	(void)value, (void)argument, (void)remote;
	return 0;
}

static struct spank_option options[] = {
	{"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "the container's image", 1, 0, accept},
	{"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "bind mounts of the container", 1, 0, accept},
	{"container-name", "NAME", "name of a container to keep", 1, 0, accept},
	{"container-workdir", "PATH", "working directory in the container", 1, 0, accept},
	{"container-mount-home", NULL, "mount the home of the user", 0, 0, accept},
	{"no-container-mount-home", NULL, "do not mount it", 0, 0, accept},
	{"container-remap-root", NULL, "be root in the container", 0, 0, accept},
	{"container-writable", NULL, "let the container's files be written", 0, 0, accept},
	{"container-entrypoint", NULL, "run the image's entrypoint", 0, 0, accept},
	{"auto-resume", "0|1", "requeue the job when a node is replaced", 1, 0, accept},
};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	size_t i;

	(void)count, (void)arguments;
	for (i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			return -1;
	return 0;
}
