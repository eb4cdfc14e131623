package badinput

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Case is a connection as HTTP/2 frames.
type http2Case struct {
	named `yaml:",inline"`
	// Do are steps: preface, settings, ping, headers <id> <name=value>…, open <id> (headers
	// of a good call), data <id> <recipe> [end], rst <id>, raw <recipe>, fill <n> <step>
	// (n times; # is the odd stream id), rapid <n> (open and rst, n times), continuation <id> <recipe>.
	Do []string `yaml:"do"`
	// Want is how the connection answers: "goaway <code>", "rst <code>", "status <n>"
	// (grpc-status), "http <n>", "closed" (without a word), "alive" (a ping is answered).
	// "closed" is also how a connection ends that has sent 64 KiB without an authenticated
	// call; where that and another answer meet at once, "or" stands between them.
	Want string `yaml:"want"`
}

const good = ":method=POST :scheme=http :path=/lightmetrics.ingest.v1.IngestService/SubmitBatch :authority=c content-type=application/grpc te=trailers"

type http2Conn struct {
	t   testing.TB
	out io.Writer
	fr  *http2.Framer
	enc *hpack.Encoder
	buf bytes.Buffer
}

func (h *http2Conn) headers(id uint32, pairs string, end bool) {
	var fields []hpack.HeaderField
	for _, p := range strings.Fields(pairs) {
		i := strings.Index(p[1:], "=") + 1
		value := p[i+1:]
		if n, rest, ok := strings.Cut(value, "*"); ok && n != "" && n[0] >= '0' && n[0] <= '9' {
			value = strings.Repeat(rest, int(number(h.t, n)))
		}
		fields = append(fields, hpack.HeaderField{Name: p[:i], Value: value})
	}
	h.fields(id, fields, end)
}

func (h *http2Conn) fields(id uint32, fields []hpack.HeaderField, end bool) {
	h.buf.Reset()
	for _, f := range fields {
		_ = h.enc.WriteField(f) // into memory
	}
	block := bytes.Clone(h.buf.Bytes())
	first := true
	for first || len(block) > 0 {
		n := min(len(block), 16000)
		if first {
			_ = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
		} else {
			_ = h.fr.WriteContinuation(id, n == len(block), block[:n])
		}
		first, block = false, block[n:]
	}
}

func (h *http2Conn) step(s string, frame []byte) {
	t := h.t
	name, rest, _ := strings.Cut(s, " ")
	id := func() uint32 {
		var n string
		n, rest, _ = strings.Cut(rest, " ")
		return uint32(number(t, n))
	}
	vars := map[string][]byte{"good": frame, "bomb": gzipMessage(t)}
	// Errors of writing mean that the server hung up: the answer decides.
	switch name {
	case "preface":
		_, _ = io.WriteString(h.out, http2.ClientPreface)
	case "settings":
		_ = h.fr.WriteSettings()
	case "ping":
		_ = h.fr.WritePing(false, [8]byte{1})
	case "open":
		h.headers(id(), good, false)
	case "headers":
		h.headers(id(), strings.ReplaceAll(rest, "GOOD", good), false)
	case "data":
		i := id()
		rest, end := strings.CutSuffix(rest, " end")
		_ = h.fr.WriteData(i, end, expand(t, rest, vars))
	case "rst":
		_ = h.fr.WriteRSTStream(id(), http2.ErrCodeCancel)
	case "rapid": // the abort of each call stands right behind its begin
		for i := range id() {
			h.step(fmt.Sprintf("open %d", 2*i+1), frame)
			h.step(fmt.Sprintf("rst %d", 2*i+1), frame)
		}
	case "continuation":
		i := id()
		_ = h.fr.WriteContinuation(i, false, expand(t, rest, nil))
	case "raw":
		_, _ = h.out.Write(expand(t, rest, nil))
	case "fill":
		n := id()
		for i := range n {
			h.step(strings.ReplaceAll(rest, "#", fmt.Sprint(2*i+1)), frame)
		}
	default:
		t.Fatalf("step %q", s)
	}
}

// answer reads until the connection says something that a case can want. A last ping
// tells a connection that lives.
func (h *http2Conn) answer(dec *hpack.Decoder) string {
	for {
		f, err := h.fr.ReadFrame()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "silence"
		case err != nil:
			return "closed"
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo && f.ErrCode != http2.ErrCodeCancel {
				return "rst " + f.ErrCode.String()
			}
		case *http2.PingFrame:
			if f.IsAck() && f.Data[0] == 9 {
				return "alive"
			}
		case *http2.HeadersFrame:
			fields, err := dec.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				return err.Error()
			}
			code := ""
			for _, hf := range fields {
				if hf.Name == ":status" && hf.Value != "200" {
					code = "http " + hf.Value
				}
				if hf.Name == "grpc-status" && code == "" {
					code = "status " + hf.Value
				}
			}
			if code != "" {
				return code
			}
		}
	}
}

// gzipMessage is a compressed gRPC message of 12 MiB of zeros: 12 KiB.
var gzipMessage = func() func(testing.TB) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(make([]byte, 12<<20))
	err = errors.Join(err, z.Close())
	m := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len())), b.Bytes()...)
	return func(t testing.TB) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}()

// TestHTTP2 sends bad HTTP/2 to the collector's gRPC face.
func TestHTTP2(t *testing.T) {
	store := memStore()
	c := startCollector(t, store)
	boundMemory(t, 192<<20)
	before := listing(t, store)
	for i, k := range load[http2Case](t, "http2") {
		t.Run(k.Name, func(t *testing.T) {
			conn, err := net.Dial("tcp", c.GRPCAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			// What stands behind the end of a call must be there when the server reads the end, before its answer.
			out := bufio.NewWriterSize(conn, 64<<10)
			h := &http2Conn{t: t, out: out, fr: http2.NewFramer(out, conn)}
			h.fr.AllowIllegalWrites = true
			h.enc = hpack.NewEncoder(&h.buf)
			frame := goodFrame(t, "http2", "boot", uint64(2*i))
			frame = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(frame))), frame...)
			got := make(chan string, 1)
			go func() { got <- h.answer(hpack.NewDecoder(4096, nil)) }()
			for _, s := range k.Do {
				h.step(s, frame)
			}
			if !strings.HasPrefix(k.Want, "status") && !strings.HasPrefix(k.Want, "http") {
				_ = h.fr.WritePing(false, [8]byte{9})
			}
			_ = out.Flush() // an error is one of writing, as above
			if a := <-got; !slices.Contains(strings.Split(k.Want, " or "), a) {
				t.Errorf("got %q, want %q", a, k.Want)
			}
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
	c.wantHealthy(t)
}
