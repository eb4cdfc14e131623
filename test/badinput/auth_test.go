package badinput

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// authCase sends a good frame with bad credentials, or for an agent that is not the
// principal's, to a collector that wants tokens.
type authCase struct {
	named `yaml:",inline"`
	// Face is http, unary or stream.
	Face string `yaml:"face"`
	// Auth are the values of the header, one a field: {web}, {db} and {nobody} are tokens,
	// {hash} the hash of the first, {fill} is repeat times "a", {ff} a byte that is no UTF-8.
	Auth   []string `yaml:"auth"`
	Repeat int      `yaml:"repeat"`
	// Key is the header's name when it is not authorization.
	Key string `yaml:"key"`
	// Method of the face unary when it is not SubmitBatch.
	Method string `yaml:"method"`
	// Agent of the frame; Hello is the stream's, when it is another. Do spoils the frame
	// by the steps of the class frame.
	Agent string   `yaml:"agent"`
	Hello string   `yaml:"hello"`
	Do    []string `yaml:"do"`
	// Want is code and reason: of HTTP, of gRPC's status, or of the stream's result.
	Want string `yaml:"want"`
}

const (
	webToken    = "web-token-0123456789"
	dbToken     = "db-token-0123456789"
	nobodyToken = "nobody-token-0123456789"
)

// principalsFile has a principal whose hash is that of no token at all, as a
// deployment with an empty secret has.
func principalsFile(t testing.TB) string {
	t.Helper()
	text := fmt.Sprintf(`principals:
- {name: web, token_sha256: %v, roles: [sender], agents: ["web-*", host-1]}
- {name: db, token_sha256: %v, roles: [sender], agents: ["db-?", "db-[0-9]*"]}
- {name: nobody, token_sha256: %v}
- {name: empty, token_sha256: %v, roles: [sender], agents: ["*"]}
`, identity.Sum([]byte(webToken)), identity.Sum([]byte(dbToken)), identity.Sum([]byte(nobodyToken)), identity.Sum(nil))
	file := filepath.Join(t.TempDir(), "principals.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (k authCase) headers() []string {
	r := strings.NewReplacer("{web}", webToken, "{db}", dbToken, "{nobody}", nobodyToken,
		"{hash}", identity.Sum([]byte(webToken)).String(), "{fill}", strings.Repeat("a", k.Repeat), "{ff}", "\xff",
		"{base64}", base64.StdEncoding.EncodeToString([]byte("web:"+webToken)))
	var vs []string
	for _, v := range k.Auth {
		vs = append(vs, r.Replace(v))
	}
	return vs
}

func (k authCase) frame(t testing.TB, boot string) (f []byte, agent, of string) {
	if len(k.Do) > 0 {
		p := newPlan(t)
		for _, s := range k.Do {
			p.apply(t, s)
		}
		return p.build(t), or(k.Agent, "host-1"), "b1"
	}
	agent = or(k.Agent, "web-1")
	return goodFrame(t, agent, boot, 2), agent, boot
}

// rawCall makes a gRPC call of HTTP/2 frames, whose headers no client would send, and
// gives the status's code and reason, "rst", "closed", or the first result of a stream.
func rawCall(t testing.TB, addr, method string, extra []hpack.HeaderField, messages ...[]byte) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	h := &http2Conn{t: t, out: conn, fr: http2.NewFramer(conn, conn)}
	h.fr.AllowIllegalWrites = true
	h.enc = hpack.NewEncoder(&h.buf)
	done := make(chan string, 1)
	go func() { done <- h.verdict() }()
	h.step("preface", nil)
	h.step("settings", nil)
	h.fields(1, append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "c"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}, extra...), false)
	for i, m := range messages {
		b := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
		_ = h.fr.WriteData(1, i == len(messages)-1, b) // the answer says when it is refused
	}
	return <-done
}

// verdict reads until the call has ended.
func (h *http2Conn) verdict() string {
	dec := hpack.NewDecoder(4096, nil)
	var data []byte
	for {
		f, err := h.fr.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			return "rst " + f.ErrCode.String()
		case *http2.DataFrame:
			data = append(data, f.Data()...)
		case *http2.HeadersFrame:
			fields, err := dec.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				return err.Error()
			}
			code, st := "", &spb.Status{}
			for _, hf := range fields {
				switch hf.Name {
				case ":status":
					if hf.Value != "200" {
						return "http " + hf.Value
					}
				case "grpc-status":
					code = hf.Value
				case "grpc-status-details-bin":
					b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(hf.Value, "="))
					if err = errors.Join(err, proto.Unmarshal(b, st)); err != nil {
						return err.Error()
					}
				}
			}
			if code == "0" {
				return result(data)
			}
			if code != "" {
				var c codes.Code
				if err := json.Unmarshal([]byte(code), &c); err != nil {
					return err.Error()
				}
				return strings.TrimSpace(c.String() + " " + rpc.Reason(status.FromProto(st).Err()))
			}
		}
	}
}

// result is the first verdict over a batch among a stream's messages; OK without one.
func result(data []byte) string {
	for len(data) >= 5 {
		n := binary.BigEndian.Uint32(data[1:])
		var m ingestv1.StreamBatchesResponse
		if proto.Unmarshal(data[5:5+n], &m) == nil && m.GetResult().GetStatus() != 0 {
			return strings.TrimSpace(m.GetResult().GetStatus().String()[len("BATCH_STATUS_"):] + " " + m.GetResult().GetReason())
		}
		data = data[5+n:]
	}
	return "OK"
}

// TestAuth sends bad tokens, and good ones of others, to the three ways in.
func TestAuth(t *testing.T) {
	store := memStore()
	c := startCollector(t, store, func(cfg *ingest.Config) {
		cfg.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: principalsFile(t)}
	})
	boundMemory(t, 96<<20)
	for i, k := range load[authCase](t, "auth") {
		t.Run(k.Name, func(t *testing.T) {
			before := listing(t, store)
			f, agent, boot := k.frame(t, fmt.Sprintf("boot-%d", i))
			if got := k.send(t, c, f, agent, boot); got != k.Want {
				t.Errorf("got %q, want %q", got, k.Want)
			}
			after := listing(t, store)
			for key, etag := range after { // a hello of an own agent claims its boot, by design
				if strings.HasPrefix(key, "boots/") && k.Hello != "" && before[key] == "" {
					before[key] = etag
				}
			}
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
	good := authCase{Face: "http", Auth: []string{"Bearer {web}"}}
	f, agent, boot := good.frame(t, "healthy")
	for _, face := range []string{"http", "unary", "stream"} {
		good.Face = face
		if got := good.send(t, c, f, agent, boot); got != "200" && got != "OK" && got != "DUPLICATE" {
			t.Errorf("%s, right credentials: %s", face, got)
		}
	}
}

func (k authCase) send(t testing.TB, c *collector, f []byte, agent, boot string) string {
	t.Helper()
	key := or(k.Key, "authorization")
	if k.Face == "http" {
		var b bytes.Buffer
		fmt.Fprintf(&b, "POST /v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.lightmetrics.batch\r\nContent-Length: %d\r\n", len(f))
		for _, v := range k.headers() {
			fmt.Fprintf(&b, "%s: %s\r\n", key, v)
		}
		b.WriteString("\r\n")
		b.Write(f)
		code, body, _ := rawAnswer(t, c.HTTPAddr(), http.MethodPost, b.Bytes(), false)
		var e struct{ Error string }
		_ = json.Unmarshal(body, &e) // not all refusals are the service's own
		return strings.TrimSpace(fmt.Sprint(code, " ", e.Error))
	}
	var fields []hpack.HeaderField
	for _, v := range k.headers() {
		fields = append(fields, hpack.HeaderField{Name: key, Value: v})
	}
	field := func(no byte, b []byte) []byte {
		return append(binary.AppendUvarint([]byte{no<<3 | 2}, uint64(len(b))), b...)
	}
	if k.Face == "unary" {
		return rawCall(t, c.GRPCAddr(), or(k.Method, methods["Submit"]), fields, field(1, f))
	}
	hello, err := proto.Marshal(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{
		Hello: &ingestv1.Hello{AgentId: or(k.Hello, agent), BootId: boot}}})
	if err != nil {
		t.Fatal(err)
	}
	return rawCall(t, c.GRPCAddr(), methods["Stream"], fields, hello, field(2, f))
}
