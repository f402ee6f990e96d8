/* The cheapest engine there is, `upstream PORT`: one thread, canned answers in vLLM's shape.

   A streamed answer has `max_tokens` chunks, `seed` milliseconds apart; each has the time of its sending in it.
   Chunks that fall due at one moment go out in separate HTTP chunks and one write. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 16384, EVENTS = 256 };

typedef struct {
    char *in, *out;
    size_t in_len, in_cap, out_from, out_len, out_cap;
    long chunks_left, gap_ms, prompt_tokens;
    long long due_ns;
    int tells_usage, is_open;
} Conn;

static Conn conns[MAX_FDS];
static int poller, last_fd;

static const char ANSWER[] =
    "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1780000000,"
    "\"model\":\"fake\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,"
    "\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[{\"id\":"
    "\"chatcmpl-tool-0123456789abcdef\",\"type\":\"function\",\"function\":{\"name\":\"read_file\",\"arguments\":"
    "\"{\\\"path\\\": \\\"src/app/services/orders/fulfilment.py\\\", \\\"offset\\\": 120, \\\"limit\\\": 80}\"}}],"
    "\"reasoning_content\":\"The failing test points at the fulfilment service, where the retry counter is reset "
    "on each attempt. I will look at the loop that calls the warehouse, and at what it catches, before I change "
    "anything, since the same helper is used by the nightly job.\"},\"logprobs\":null,\"finish_reason\":"
    "\"tool_calls\",\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":"
    "{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":96,\"prompt_tokens_details\":"
    "{\"cached_tokens\":%ld}},\"prompt_logprobs\":null,\"kv_transfer_params\":null}";
static const char EVENT[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
    "\"created\":1780000000,\"model\":\"fake\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" T=%019lld\"},"
    "\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n";
static const char USAGE[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
    "\"created\":1780000000,\"model\":\"fake\",\"choices\":[],\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":"
    "%ld,\"completion_tokens\":200,\"prompt_tokens_details\":{\"cached_tokens\":%ld}}}\n\n";
static const char DONE[] = "data: [DONE]\n\n";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"fake\",\"object\":\"model\",\"created\":1780000000,\"owned_by\":"
    "\"vllm\",\"root\":\"fake\",\"parent\":null,\"max_model_len\":1000000}]}";
static const char METRICS[] =
    "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks="
    "\"10000000\"} 1.0\nvllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_waiting{engine=\"0\"} 0.0\n";

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void put(Conn *c, const char *data, size_t len) {
    if (c->out_len + len > c->out_cap) {
        c->out_cap = 2 * (c->out_len + len);
        c->out = realloc(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
}

static void put_chunk(Conn *c, const char *data, size_t len) {
    char size[16];
    put(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", len));
    put(c, data, len);
    put(c, "\r\n", 2);
}

static void watch(int fd, int how, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(poller, how, fd, &event);
}

static void hang_up(int fd) {
    close(fd);
    conns[fd].is_open = 0;
    conns[fd].in_len = conns[fd].out_len = conns[fd].out_from = 0;
    conns[fd].chunks_left = 0;
}

static void flush(int fd) {
    Conn *c = &conns[fd];
    while (c->out_from < c->out_len) {
        ssize_t sent = write(fd, c->out + c->out_from, c->out_len - c->out_from);
        if (sent < 0) {
            if (errno == EAGAIN) watch(fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            else hang_up(fd);
            return;
        }
        c->out_from += (size_t)sent;
    }
    if (c->out_len) watch(fd, EPOLL_CTL_MOD, EPOLLIN);
    c->out_from = c->out_len = 0;
}

static void reply(Conn *c, const char *status, const char *body) {
    char head[256];
    const char *kind = *body == '{' ? "application/json" : "text/plain";
    const char *format = "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n";
    put(c, head, (size_t)snprintf(head, sizeof head, format, status, kind, strlen(body)));
    put(c, body, strlen(body));
}

static void send_due(int fd, long long now) {
    Conn *c = &conns[fd];
    char event[sizeof EVENT + 64];
    while (c->chunks_left > 0 && c->due_ns <= now) {
        const char *finish = --c->chunks_left ? "null" : "\"stop\"";
        put_chunk(c, event, (size_t)snprintf(event, sizeof event, EVENT, now, finish));
        c->due_ns += c->gap_ms * 1000000LL;
    }
    if (c->chunks_left == 0) {
        if (c->tells_usage) {
            char usage[sizeof USAGE + 64];
            long t = c->prompt_tokens;
            put_chunk(c, usage, (size_t)snprintf(usage, sizeof usage, USAGE, t, t + 200, t * 9 / 10));
        }
        put_chunk(c, DONE, sizeof DONE - 1);
        put(c, "0\r\n\r\n", 5);
    }
    flush(fd);
}

/* The number behind `"key":` in the first or last KB, where top-level keys are. */
static long number(const char *body, size_t len, const char *key) {
    const char *at = memmem(body, len < 1024 ? len : 1024, key, strlen(key));
    if (!at && len > 1024) at = memmem(body + len - 1024, 1024, key, strlen(key));
    return at ? atol(at + strlen(key)) : 0;
}

static void answer(int fd, const char *head, const char *body, size_t len) {
    Conn *c = &conns[fd];
    if (!strncmp(head, "GET ", 4)) {
        head += 4;
        if (!strncmp(head, "/v1/models ", 11)) reply(c, "200 OK", MODELS);
        else if (!strncmp(head, "/health", 7)) reply(c, "200 OK", "{}");
        else if (!strncmp(head, "/version", 8)) reply(c, "200 OK", "{\"version\":\"0.32.0\"}");
        else if (!strncmp(head, "/metrics", 8)) reply(c, "200 OK", METRICS);
        else reply(c, "404 Not Found", "{}");
    } else if (strncmp(head, "POST /v1/chat/completions ", 26)) {
        reply(c, "404 Not Found", "{}");
    } else if (!memmem(body, len, "\"stream\":true", 13) && !memmem(body, len, "\"stream\": true", 14)) {
        char text[sizeof ANSWER + 64];
        snprintf(text, sizeof text, ANSWER, (long)len / 4, (long)len / 4 + 96, (long)len / 4 * 9 / 10);
        reply(c, "200 OK", text);
    } else {
        const char *kind = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                           "transfer-encoding: chunked\r\n\r\n";
        put(c, kind, strlen(kind));
        c->prompt_tokens = (long)len / 4;
        c->chunks_left = number(body, len, "\"max_tokens\":");
        c->gap_ms = number(body, len, "\"seed\":");
        c->tells_usage = memmem(body, len, "\"include_usage\":", 16) != NULL;
        c->due_ns = now_ns();
        send_due(fd, c->due_ns);
        return;
    }
    flush(fd);
}

static void take(int fd) {
    Conn *c = &conns[fd];
    char *end = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
    if (!end) return;
    *end = 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    int is_chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked") != NULL;
    *end = '\r';
    size_t head_len = (size_t)(end - c->in) + 4, len = length ? strtoul(length + 17, NULL, 10) : 0;
    if (is_chunked) {
        if (memcmp(c->in + c->in_len - 5, "0\r\n\r\n", 5)) return;
        len = c->in_len - head_len;
    }
    if (c->in_len < head_len + len) return;
    answer(fd, c->in, c->in + head_len, len);
    c->in_len = 0;
}

static void hear(int fd) {
    Conn *c = &conns[fd];
    for (;;) {
        if (c->in_cap < c->in_len + 65536) {
            c->in_cap = 2 * c->in_len + 131072;
            c->in = realloc(c->in, c->in_cap);
        }
        ssize_t got = read(fd, c->in + c->in_len, c->in_cap - c->in_len - 1);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            hang_up(fd);
            return;
        }
        if (got < 0) break;
        c->in_len += (size_t)got;
        c->in[c->in_len] = 0;
    }
    take(fd);
}

static void greet(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conns[fd].is_open = 1;
        if (fd > last_fd) last_fd = fd;
        watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event events[EVENTS];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    if (argc < 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    at.sin_port = htons((unsigned short)atoi(argv[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) {
        perror("upstream");
        return 1;
    }
    poller = epoll_create1(0);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        int streams = 0;
        long long now = now_ns();
        for (int fd = 0; fd <= last_fd; fd++) {
            if (!conns[fd].is_open || conns[fd].chunks_left <= 0) continue;
            if (conns[fd].due_ns <= now) send_due(fd, now);
            streams |= conns[fd].chunks_left > 0;
        }
        int count = epoll_wait(poller, events, EVENTS, streams ? 1 : -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) greet(listener);
            else if (events[i].events & (EPOLLHUP | EPOLLERR)) hang_up(fd);
            else if (events[i].events & EPOLLOUT) flush(fd);
            else hear(fd);
        }
    }
}
