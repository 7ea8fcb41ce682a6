// A program that loads plugins for themselves alone. Each has an engine of its own behind it, of which the program knows
// nothing: a function of a name that this library has, too.
//   -DENGINE=N: such an engine.   -DPLUGIN: a plugin, linked against one.   plugins PLUGIN...
#include <dlfcn.h>
#include <stdio.h>

int io_queue_init(int many, void **context);

#if defined ENGINE
int io_queue_init(int many, void **context) {
    *context = (void *)(long)many;
    return -ENGINE;
}
#elif defined PLUGIN
int begin(int many, void **context) { return io_queue_init(many, context); }
#else
int main(int count, char **args) {
    for (int again = 0; again < 2; again++)
        for (int i = 1; i < count; i++) {
            void *plugin = dlopen(args[i], RTLD_NOW | RTLD_LOCAL), *context = NULL;
            int (*begin)(int, void **) = plugin ? (int (*)(int, void **))dlsym(plugin, "begin") : NULL;
            if (!begin) return puts(dlerror()), 1;
            int done = begin(40 + i, &context);
            const char *error = dlerror();
            printf("%d %ld %s\n", done, (long)context, error ? error : "-");
        }
    return 0;
}
#endif
