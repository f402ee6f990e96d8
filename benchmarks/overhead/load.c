/* Clients, `load PORT CONNECTIONS SECONDS BODY...`: as many conversations at once as there are connections.

   Each BODY file is one turn; a conversation asks them in order, then the next one begins. The first 16 `@` of
   a body become the number of the conversation. After SECONDS no further request begins; 0: one request per
   connection. Prints one JSON object; a chunk's latency is read from the time that the upstream wrote into it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 16384, ID = 16, BUFFER = 262144, MAX_SAMPLES = 4000000, GIVE_UP_S = 30 };

typedef struct {
    char *text;
    size_t len, id_at;
} Body;

typedef struct {
    int fd, turn, is_busy, status, is_chunked, newlines, has_event;
    char id[ID + 1], head[HEAD];
    size_t head_len, sent;
    long long asked_ns, body_left; /* body_left: of the body, or of its chunk; -1: the size line comes */
    char line[32];
    int line_len;
} Conn;

typedef struct {
    unsigned *us;
    size_t count;
} Samples;

static Body *bodies;
static int num_bodies, poller;
static long conversations, requests, errors, events;
static long long deadline_ns, last_ns;
static struct sockaddr_in at = {.sin_family = AF_INET};
static Samples whole, first, chunk;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sample(Samples *s, long long ns) {
    if (!s->us) s->us = malloc(MAX_SAMPLES * sizeof *s->us);
    if (s->count < MAX_SAMPLES) s->us[s->count++] = (unsigned)(ns < 0 ? 0 : ns / 1000);
}

static int order(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

static void tell(const char *name, Samples *s) {
    qsort(s->us, s->count, sizeof *s->us, order);
    unsigned p50 = s->count ? s->us[s->count / 2] : 0, p99 = s->count ? s->us[s->count * 99 / 100] : 0;
    printf(",\"%s_p50_us\":%u,\"%s_p99_us\":%u", name, p50, name, p99);
}

static void watch(Conn *c, int how, unsigned wanted) {
    struct epoll_event event = {.events = wanted, .data.ptr = c};
    epoll_ctl(poller, how, c->fd, &event);
}

static void push(Conn *c) {
    Body *b = &bodies[c->turn];
    struct iovec all[3] = {{b->text, b->id_at}, {c->id, ID}, {b->text + b->id_at + ID, b->len - b->id_at - ID}};
    while (c->sent < b->len) {
        struct iovec rest[3];
        size_t skip = c->sent;
        int count = 0;
        for (int i = 0; i < 3; i++) {
            size_t cut = skip < all[i].iov_len ? skip : all[i].iov_len;
            skip -= cut;
            if (cut < all[i].iov_len)
                rest[count++] = (struct iovec){(char *)all[i].iov_base + cut, all[i].iov_len - cut};
        }
        ssize_t sent = writev(c->fd, rest, count);
        if (sent < 0) {
            if (errno == EAGAIN) watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        c->sent += (size_t)sent;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void ask(Conn *c) {
    if (c->turn == 0) snprintf(c->id, sizeof c->id, "%016ld", ++conversations * 1000000 + getpid() % 1000000);
    c->head_len = c->sent = 0;
    c->status = c->is_chunked = c->newlines = c->has_event = c->line_len = 0;
    c->is_busy = 1;
    c->asked_ns = now_ns();
    push(c);
}

static void dial(Conn *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at)) {
        perror("load: connect");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval none = {0, 1};
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static void over(Conn *c, int failed) {
    last_ns = now_ns();
    c->is_busy = 0;
    if (failed || c->status != 200) errors++;
    else requests++, sample(&whole, last_ns - c->asked_ns);
    c->turn = (c->turn + 1) % num_bodies;
    if (failed) close(c->fd);
    if (last_ns >= deadline_ns) return;
    if (failed) dial(c);
    ask(c);
}

/* Payload of the answer: events end with an empty line, and hold the time at which they were sent. */
static void read_events(Conn *c, const char *data, size_t len, long long now) {
    for (const char *end = data + len, *p = data; p < end; p++) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        const char *stamp = memmem(p, (size_t)((line_end ? line_end : end) - p), " T=", 3);
        if (stamp && end - stamp > 22) sample(&chunk, now - strtoll(stamp + 3, NULL, 10));
        if (!line_end) {
            c->newlines = 0;
            return;
        }
        c->newlines = line_end == p ? c->newlines + 1 : 1;
        if (c->newlines == 2) {
            events++;
            if (!c->has_event) sample(&first, now - c->asked_ns);
            c->has_event = 1;
        }
        p = line_end;
    }
}

/* True when the answer is whole. */
static int read_body(Conn *c, const char *data, size_t len, long long now) {
    while (len) {
        if (c->is_chunked && c->body_left < 0) {
            len--;
            if (*data++ != '\n') {
                if (c->line_len < 31) c->line[c->line_len++] = data[-1];
                continue;
            }
            c->line[c->line_len] = 0;
            long long size = strtoll(c->line, NULL, 16);
            if (c->line_len <= 1) { /* the empty line behind a chunk, or at the end */
                if (c->has_event == 2) return 1;
            } else if (size > 0) c->body_left = size;
            else c->has_event = 2;
            c->line_len = 0;
            continue;
        }
        size_t now_len = (long long)len < c->body_left ? len : (size_t)c->body_left;
        if (c->is_chunked) read_events(c, data, now_len, now);
        data += now_len, len -= now_len, c->body_left -= (long long)now_len;
        if (c->body_left == 0) {
            if (!c->is_chunked) return 1;
            c->body_left = -1;
        }
    }
    return 0;
}

static void hear(Conn *c) {
    static char buffer[BUFFER];
    ssize_t got = recv(c->fd, buffer, BUFFER, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        if (c->is_busy) over(c, 1);
        else close(c->fd);
        return;
    }
    long long now = now_ns();
    size_t body_at = 0;
    if (!c->status) {
        size_t room = HEAD - 1 - c->head_len, had = c->head_len, take = (size_t)got < room ? (size_t)got : room;
        memcpy(c->head + had, buffer, take);
        c->head_len += take;
        c->head[c->head_len] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end) return;
        body_at = (size_t)(end - c->head) + 4 - had;
        *end = 0;
        c->status = atoi(c->head + 9);
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        c->is_chunked = !length;
        c->body_left = length ? atoll(length + 17) : -1;
        if (c->body_left == 0) {
            over(c, 0);
            return;
        }
    }
    if (read_body(c, buffer + body_at, (size_t)got - body_at, now)) over(c, 0);
}

static Body read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char head[512];
    if (!file) {
        perror(path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    size_t len = (size_t)ftell(file);
    rewind(file);
    const char *format = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                         "Authorization: Bearer sk-0123456789abcdef\r\nAccept: */*\r\nUser-Agent: load\r\n"
                         "Content-Length: %zu\r\n\r\n";
    size_t head_len = (size_t)snprintf(head, sizeof head, format, len);
    Body body = {malloc(head_len + len), head_len + len, 0};
    memcpy(body.text, head, head_len);
    if (fread(body.text + head_len, 1, len, file) != len) exit(1);
    char *id = memmem(body.text, body.len, "@@@@@@@@@@@@@@@@", ID);
    if (!id) exit(1);
    body.id_at = (size_t)(id - body.text);
    fclose(file);
    return body;
}

int main(int argc, char **argv) {
    struct epoll_event ready[256];
    if (argc < 5) return 2;
    signal(SIGPIPE, SIG_IGN);
    at.sin_port = htons((unsigned short)atoi(argv[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int num_conns = atoi(argv[2]), started = 0;
    num_bodies = argc - 4;
    bodies = calloc((size_t)num_bodies, sizeof *bodies);
    for (int i = 0; i < num_bodies; i++) bodies[i] = read_file(argv[4 + i]);
    poller = epoll_create1(0);
    Conn *conns = calloc((size_t)num_conns, sizeof *conns);
    for (int i = 0; i < num_conns; i++) dial(&conns[i]);
    long long start_ns = now_ns(), seconds_ns = (long long)(atof(argv[3]) * 1e9), step_ns = 20000000 / num_conns;
    deadline_ns = start_ns + seconds_ns;
    for (int busy = 1; busy && now_ns() < deadline_ns + GIVE_UP_S * 1000000000LL;) {
        /* They begin spread over 20 ms, so that streams do not beat in step. */
        while (started < num_conns && now_ns() >= start_ns + started * step_ns) ask(&conns[started++]);
        int count = epoll_wait(poller, ready, 256, started < num_conns ? 0 : 1000);
        for (int i = 0; i < count; i++) {
            Conn *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) push(c);
            if (ready[i].events & ~(unsigned)EPOLLOUT) hear(c);
        }
        busy = started < num_conns;
        for (int i = 0; i < num_conns && !busy; i++) busy = conns[i].is_busy;
    }
    for (int i = 0; i < num_conns; i++) errors += conns[i].is_busy;
    printf("{\"requests\":%ld,\"errors\":%ld,\"events\":%ld,\"seconds\":%.6f", requests, errors, events,
           (double)(last_ns - start_ns) / 1e9);
    tell("whole", &whole);
    tell("first", &first);
    tell("chunk", &chunk);
    puts("}");
    return 0;
}
