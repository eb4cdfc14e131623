package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// httpService is a service with an HTTP port.
type httpService struct {
	title   string
	tags    []string // gRPC services
	routes  string   // its name in the table of test/access
	address string
	guide   string
	protos  []protoreflect.FileDescriptor // where tags and their messages are declared
}

var httpServices = []httpService{
	{"Collector", []string{"IngestService"}, "ingest", "127.0.0.1:4751", "ingest", protos(ingestv1.File_lightmetrics_ingest_v1_ingest_proto)},
	{"Query service", []string{"QueryService"}, "query", "127.0.0.1:4760", "query", protos(queryv1.File_lightmetrics_query_v1_query_proto)},
	{"Reconciler", []string{"ReconcilerService"}, "reconciler", "127.0.0.1:4770", "reconciler", protos(reconcilerv1.File_lightmetrics_reconciler_v1_reconciler_proto)},
	{"Coordinator", []string{"OwnershipService", "WorkService"}, "coordinator", "127.0.0.1:4780", "coordinator",
		protos(coordinatorv1.File_lightmetrics_coordinator_v1_ownership_proto, coordinatorv1.File_lightmetrics_coordinator_v1_work_proto)},
	{"Rollup worker", nil, "rollup", "127.0.0.1:4775", "rollup", nil},
}

func protos(files ...protoreflect.FileDescriptor) []protoreflect.FileDescriptor { return files }

// about says what the routes are for that no proto describes.
var about = map[string]string{
	"/api/v1/":                "the Prometheus HTTP API: [which paths](../guide/query.md#answers)",
	"GET /status":             "a page for people: how the service is, and what is wrong",
	"POST /v1/events":         "where `events.webhook` is on: [events of the bucket](../guide/reconciler.md#events-of-the-bucket), S3 event JSON of at most 1 MiB",
	"GET /v1/rollup/shards":   "shards of this worker and what is pending",
	"GET /-/healthy":          "200 while the process runs",
	"GET /-/ready":            "200 while it can do its work, else 503 and [why not](../guide/readiness.md)",
	"GET /metrics":            "metrics of the process, for Prometheus",
	"GET /config":             "settings in force, secrets left out",
	"GET /debug/pprof/":       "profiles, where `pprof` is on",
	"GET /debug/pprof/trace":  "", // of the line above
	"GET /debug/pprof/symbol": "", "GET /debug/pprof/profile": "",
}

// openAPI is the part of proto/gen/openapi that is used here.
type openAPI struct {
	Paths       map[string]map[string]operation
	Definitions map[string]schema
}

type operation struct {
	Summary, Description string
	OperationID          string `json:"operationId"`
	Tags                 []string
	Parameters           []parameter
	Responses            map[string]struct{ Schema schema }
}

type parameter struct {
	Name, In, Description, Type, Format string
	Required                            bool
	Schema, Items                       *schema
}

type schema struct {
	Ref                              string `json:"$ref"`
	Type, Format, Title, Description string
	Items                            *schema
	Properties                       map[string]schema
	AdditionalProperties             *schema
	Enum                             []string
}

// httpDoc writes the page.
type httpDoc struct {
	bytes.Buffer
	api    openAPI
	access *access
	fields map[string]string         // proto names of fields by JSON names
	order  map[string]map[string]int // numbers of fields by message's and field's name
}

// httpPage is the reference of what services answer over HTTP, from the protos' comments and
// annotations (through proto/gen/openapi) and the table of roles.
func httpPage(root string) ([]byte, error) {
	d := &httpDoc{fields: map[string]string{}, order: map[string]map[string]int{}}
	b, err := os.ReadFile(filepath.Join(root, "proto/gen/openapi/lightmetrics.swagger.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &d.api); err != nil {
		return nil, err
	}
	if d.access, err = readAccess(root); err != nil {
		return nil, err
	}
	d.WriteString(httpIntro)
	used := map[string]bool{}
	for _, s := range httpServices {
		for _, f := range s.protos {
			d.learn(f.Messages())
		}
	}
	for _, s := range httpServices {
		if err := d.service(s, used); err != nil {
			return nil, err
		}
	}
	if err := d.adminRoutes(); err != nil {
		return nil, err
	}
	d.messages(used)
	return bytes.TrimRight(d.Bytes(), "\n"), nil
}

const httpIntro = `# HTTP reference

Written by ` + "`go run ./internal/docgen`" + ` from the protos and the table of roles; do not edit. The same methods are served over gRPC with the
names of the protos. [Access](../guide/access.md) says what a role is; ` + "`auth.mode: none`" + ` on loopback asks nobody.

Names in answers are those of the protos (` + "`agent_id`" + `), parameters are taken in that form and in camel case (` + "`agentId`" + `). Whole numbers of 64 bits are JSON strings, bytes
are base64, and fields without a value are there too. An error is a JSON object under the status that fits it:
` + "`error`" + ` is the reason of the gRPC status in lower case, for programs; ` + "`message`" + ` is for people; what the reason travels with stands beside. Where the request may be made
again there is ` + "`retry_after_seconds`" + `, and a header Retry-After.
Pages: ask again with ` + "`page_token`" + ` set to the ` + "`next_page_token`" + ` of the answer, until that is empty.
`

// learn notes the fields' names.
func (d *httpDoc) learn(ms protoreflect.MessageDescriptors) {
	for i := range ms.Len() {
		m := ms.Get(i)
		numbers := map[string]int{}
		for k := range m.Fields().Len() {
			f := m.Fields().Get(k)
			d.fields[f.JSONName()] = string(f.Name())
			numbers[string(f.Name())] = int(f.Number())
		}
		d.order[string(m.FullName())] = numbers
		d.learn(m.Messages())
	}
}

func (d *httpDoc) name(jsonName string) string {
	if n, ok := d.fields[jsonName]; ok {
		return n
	}
	return jsonName
}

var inPath = regexp.MustCompile(`\{([A-Za-z0-9]+)\}`)

func (d *httpDoc) path(p string) string {
	return inPath.ReplaceAllStringFunc(p, func(m string) string { return "{" + d.name(m[1:len(m)-1]) + "}" })
}

// service writes what one service has beside what all have.
func (d *httpDoc) service(s httpService, used map[string]bool) error {
	fmt.Fprintf(d, "\n## %s\n\n`http://%s` unless told otherwise; [guide](../guide/%s.md).\n", s.title, s.address, s.guide)
	known := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(d.api.Paths)) {
		for _, verb := range slices.Sorted(maps.Keys(d.api.Paths[path])) {
			op := d.api.Paths[path][verb]
			if !slices.ContainsFunc(op.Tags, func(t string) bool { return slices.Contains(s.tags, t) }) {
				continue
			}
			pattern := strings.ToUpper(verb) + " " + d.path(path)
			known[pattern] = true
			known[regexp.MustCompile(`:[a-z]+$`).ReplaceAllString(pattern, "")] = true
			if err := d.operation(pattern, op, used); err != nil {
				return err
			}
		}
	}
	return d.table(d.access.routes[s.routes], known)
}

// table writes routes that are not of the protos.
func (d *httpDoc) table(routes map[string]string, known map[string]bool) error {
	head := false
	for _, pattern := range slices.Sorted(maps.Keys(routes)) {
		trimmed := strings.TrimSpace(pattern)
		if known[trimmed] {
			continue
		}
		text, ok := about[trimmed]
		if !ok {
			return fmt.Errorf("%s has no line in about", trimmed)
		}
		if text == "" {
			continue
		}
		if !head {
			head = true
			d.WriteString("\n| Path | Roles | |\n|---|---|---|\n")
		}
		fmt.Fprintf(d, "| `%s` | %s | %s |\n", trimmed, names(routes[pattern]), text)
	}
	return nil
}

func (d *httpDoc) adminRoutes() error {
	d.WriteString("\n## Every service\n\n`GET /` lists the paths of the service, for everybody. Those of the object store are on its admin address, and ask nobody.\n")
	return d.table(d.access.admin, nil)
}

func (d *httpDoc) operation(pattern string, op operation, used map[string]bool) error {
	roles, err := d.access.of(op.OperationID)
	if err != nil {
		return err
	}
	_, method, _ := strings.Cut(op.OperationID, "_")
	text := strings.TrimPrefix(oneLine(op.Summary+" "+op.Description), method+" ")
	fmt.Fprintf(d, "\n### `%s`\n\n%s Roles: %s. gRPC: `%s`.\n", pattern, sentence(text), names(roles), strings.Replace(op.OperationID, "_", "/", 1))
	var rows []string
	for _, p := range op.Parameters {
		switch {
		case p.In == "body" && p.Schema != nil && p.Schema.Ref != "":
			body := d.api.Definitions[refName(p.Schema.Ref)]
			for _, name := range slices.Sorted(maps.Keys(body.Properties)) {
				f := body.Properties[name]
				rows = append(rows, row(d.name(name), "JSON body", d.typeOf(f, used), f.Description))
			}
		case p.In == "body":
			rows = append(rows, row(p.Name, "body", "bytes", p.Description))
		default:
			rows = append(rows, row(d.name(p.Name), p.In, d.typeOf(schema{Type: p.Type, Format: p.Format, Items: p.Items}, used), p.Description))
		}
	}
	if len(rows) > 0 {
		d.WriteString("\n| Parameter | In | Type | |\n|---|---|---|---|\n" + strings.Join(rows, ""))
	}
	if op.OperationID == "IngestService_SubmitBatch" {
		// Its answer is written by hand (services/ingest/marshaler.go), not the proto's.
		d.WriteString("\n" + submitAnswer)
		return nil
	}
	answer := op.Responses["200"].Schema
	stream := answer.Ref == ""
	if stream {
		answer = answer.Properties["result"]
	}
	def := refName(answer.Ref)
	if stream {
		fmt.Fprintf(d, "\nAnswers a stream of JSON objects, one a line, each `{\"result\": …}`, or `{\"error\": …}` at its end:\n")
	}
	d.WriteString(d.fieldTable(def, used))
	return nil
}

const submitAnswer = `Content type ` + "`application/vnd.lightmetrics.batch`" + `, or ` + "`application/json`" + ` for [the batch as JSON](../format/batch-json.md). The answer:

| Field | Type | |
|---|---|---|
| ` + "`duplicate`" + ` | boolean | Whether it was accepted before with the same bytes. |
| ` + "`frame_sha256`" + ` | string | SHA-256 of the frame, hex. |
| ` + "`accepted_at`" + ` | string | Time of the acceptance, RFC 3339. |
| ` + "`collector_id`" + ` | string | Collector that accepted it. |
| ` + "`manifest_key`" + ` | string | Key of the identity manifest. |
`

// fieldTable has the fields of a message, in the order of the proto.
func (d *httpDoc) fieldTable(def string, used map[string]bool) string {
	s := d.api.Definitions[def]
	if len(s.Properties) == 0 {
		return "\nThe answer is an empty object.\n"
	}
	keys := slices.Collect(maps.Keys(s.Properties))
	numbers := d.numbers(def, keys)
	slices.SortFunc(keys, func(a, b string) int {
		if c := numbers[d.name(a)] - numbers[d.name(b)]; c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	b.WriteString("\n| Field | Type | |\n|---|---|---|\n")
	for _, k := range keys {
		f := s.Properties[k]
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.name(k), d.typeOf(f, used), oneLine(f.Title+" "+f.Description))
	}
	return b.String()
}

// numbers finds the message of a definition, whose name has the package in short or not at all.
func (d *httpDoc) numbers(def string, keys []string) map[string]int {
	for full, numbers := range d.order {
		if !strings.HasSuffix(full, "."+shortName(def)) || len(numbers) != len(keys) {
			continue
		}
		if !slices.ContainsFunc(keys, func(k string) bool { _, ok := numbers[d.name(k)]; return !ok }) {
			return numbers
		}
	}
	return nil
}

// messages has a section for each message that answers refer to.
func (d *httpDoc) messages(used map[string]bool) {
	d.WriteString("\n## Messages\n")
	done := map[string]bool{}
	for more := true; more; {
		more = false
		for _, def := range slices.Sorted(maps.Keys(used)) {
			if !done[def] {
				done[def], more = true, true
				d.fieldTable(def, used) // notes what it refers to
			}
		}
	}
	for _, def := range slices.SortedFunc(maps.Keys(done), func(a, b string) int { return strings.Compare(title(a), title(b)) }) {
		fmt.Fprintf(d, "\n### %s\n\n%s\n%s", title(def), sentence(strings.TrimPrefix(oneLine(d.api.Definitions[def].Description), shortName(def)+" ")), d.fieldTable(def, used))
	}
}

// typeOf names a type; a message is a link to its section.
func (d *httpDoc) typeOf(s schema, used map[string]bool) string {
	switch {
	case s.Ref != "":
		def := refName(s.Ref)
		used[def] = true
		return fmt.Sprintf("[%s](#%s)", title(def), strings.ToLower(strings.ReplaceAll(title(def), " ", "-")))
	case s.Type == "array":
		return "list of " + d.typeOf(*s.Items, used)
	case s.AdditionalProperties != nil:
		return "map to " + d.typeOf(*s.AdditionalProperties, used)
	case s.Format == "byte":
		return "bytes"
	case s.Format != "":
		return s.Format
	}
	return s.Type
}

var definition = regexp.MustCompile(`^(?:lightmetrics(Query|Reconciler|Coordinator|Ingest)V1|v1|rpc|protobuf)?(.+)$`)

// shortName is a message's own name.
func shortName(def string) string { return definition.FindStringSubmatch(def)[2] }

// title tells messages of one name apart by their services.
func title(def string) string {
	m := definition.FindStringSubmatch(def)
	if m[1] != "" {
		return m[2] + " of " + strings.ToLower(m[1])
	}
	return m[2]
}

func refName(ref string) string { return strings.TrimPrefix(ref, "#/definitions/") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func row(name, in, typ, text string) string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, in, typ, oneLine(text))
}

// sentence begins with a capital letter.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
