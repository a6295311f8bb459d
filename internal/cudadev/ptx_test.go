package cudadev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// program is the kernel's text, for a machine that knows what of PTX it uses.
type program struct {
	code   [][]string // words of an instruction, its guard first, "" for none
	labels map[string]int
}

var ptxWord = regexp.MustCompile(`[%.\w]+|[{}\[\]+]`)

func parsePTX(t *testing.T, text string) *program {
	t.Helper()
	p := &program{labels: map[string]int{}}
	_, body, found := strings.Cut(text, "\n{\n")
	if !found {
		t.Fatal("the kernel has no body")
	}
	for line := range strings.Lines(body) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "//")
		switch {
		case line == "" || line == "}" || strings.HasPrefix(line, ".reg"):
		case strings.HasSuffix(line, ":"):
			p.labels[strings.TrimSuffix(line, ":")] = len(p.code)
		default:
			guard := ""
			if rest, guarded := strings.CutPrefix(line, "@"); guarded {
				guard, line, _ = strings.Cut(rest, " ")
			}
			p.code = append(p.code, append([]string{guard}, ptxWord.FindAllString(line, -1)...))
		}
	}
	return p
}

// machine is memory that a kernel may touch: byte slices at made-up addresses.
type machine struct {
	t      *testing.T
	memory map[uint64][]byte // by address, far from each other
}

const regionSpan = 1 << 40

func (m *machine) at(address, n uint64) []byte {
	data := m.memory[address/regionSpan*regionSpan]
	offset := address % regionSpan
	if offset+n > uint64(len(data)) {
		m.t.Fatalf("%d bytes at %#x: there are %d", n, address, len(data))
	}
	if address%n != 0 {
		m.t.Fatalf("%d bytes at %#x are not aligned", n, address)
	}
	return data[offset : offset+n]
}

// thread runs one thread of the kernel to its end.
func (m *machine) thread(p *program, list uint64, count, block, blocks, thread, threads uint32) {
	regs := map[string]uint64{"%ctaid.x": uint64(block), "%nctaid.x": uint64(blocks), "%tid.x": uint64(thread), "%ntid.x": uint64(threads), "list": list, "count": uint64(count)}
	value := func(name string) uint64 {
		if number, err := strconv.ParseUint(name, 10, 64); err == nil {
			return number
		}
		v, ok := regs[name]
		if !ok {
			m.t.Fatalf("%s is read and was never set", name)
		}
		return v
	}
	for pc, steps := 0, 0; pc < len(p.code); pc++ {
		if steps++; steps > 1<<20 {
			m.t.Fatal("the kernel does not end")
		}
		in := p.code[pc]
		if in[0] != "" && value(in[0]) == 0 {
			continue
		}
		op, args := strings.Split(in[1], "."), in[2:]
		wide := strings.HasSuffix(in[1], "64")
		set := func(v uint64) {
			if !wide {
				v = uint64(uint32(v))
			}
			regs[args[0]] = v
		}
		switch op[0] {
		case "ret":
			return
		case "bra":
			pc = p.labels[args[0]] - 1
			if _, ok := p.labels[args[0]]; !ok {
				m.t.Fatalf("no label %s", args[0])
			}
		case "mov":
			set(value(args[1]))
		case "cvt", "cvta":
			wide = op[len(op)-1] == "u64" && op[0] == "cvta" || op[1] == "u64"
			set(value(args[1]))
		case "add":
			set(value(args[1]) + value(args[2]))
		case "or":
			set(value(args[1]) | value(args[2]))
		case "and":
			set(value(args[1]) & value(args[2]))
		case "shr":
			set(value(args[1]) >> value(args[2]))
		case "mad":
			set(value(args[1])*value(args[2]) + value(args[3]))
		case "mul":
			wide = op[1] == "wide"
			set(value(args[1]) * value(args[2]))
		case "setp":
			yes := value(args[1]) >= value(args[2])
			if op[1] == "eq" {
				yes = value(args[1]) == value(args[2])
			}
			regs[args[0]] = map[bool]uint64{true: 1}[yes]
		case "ld", "st":
			if op[1] == "param" {
				set(value(args[2]))
				continue
			}
			m.access(in[1], args, regs, value)
		default:
			m.t.Fatalf("the machine does not know %s", in[1])
		}
	}
}

// access is a load or a store of one register, or of four at once.
func (m *machine) access(op string, args []string, regs map[string]uint64, value func(string) uint64) {
	var vector []string
	address, bracket := uint64(0), false
	for _, word := range args {
		switch {
		case word == "[":
			bracket = true
		case word == "]":
			bracket = false
		case bracket && word != "+":
			address += value(word)
		case word != "{" && word != "}" && word != "+":
			vector = append(vector, word)
		}
	}
	width := map[string]uint64{"u8": 1, "u32": 4, "u64": 8}[op[strings.LastIndexByte(op, '.')+1:]]
	data := m.at(address, width*uint64(len(vector)))
	for i, name := range vector {
		var word [8]byte
		part := data[uint64(i)*width:][:width]
		if strings.HasPrefix(op, "ld") {
			copy(word[:], part)
			regs[name] = binary.LittleEndian.Uint64(word[:])
		} else {
			binary.LittleEndian.PutUint64(word[:], value(name))
			copy(part, word[:])
		}
	}
}

// TestTheKernelCopies runs the kernel's text, thread by thread, over tiles of all
// alignments and lengths around its steps.
func TestTheKernelCopies(t *testing.T) {
	p := parsePTX(t, kernelText)
	const size = 1 << 20
	source, target := make([]byte, size), make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(source)
	want := bytes.Clone(target)
	m := &machine{t: t, memory: map[uint64][]byte{1 * regionSpan: source, 2 * regionSpan: target}}
	var list []byte
	at := uint64(0)
	for _, align := range []uint64{16, 4, 1} {
		for _, n := range []uint64{align, 3 * align, 496, 512, 528, 3584, 4080, 4096, 4112, 8176, tileBytes} {
			if align != 16 {
				n += align // of no larger power
			}
			to, from := at, at/2/16*16
			if align != 16 {
				to, from = to+align, from+2*align
			}
			list = binary.LittleEndian.AppendUint64(list, 2*regionSpan+to)
			list = binary.LittleEndian.AppendUint64(list, 1*regionSpan+from)
			list = binary.LittleEndian.AppendUint64(list, n)
			copy(want[to:to+n], source[from:])
			at = (to + n + 64) / 16 * 16
		}
	}
	m.memory[3*regionSpan] = list
	count := uint32(len(list) / entryBytes)
	for _, shape := range [][2]uint32{{1, 32}, {2, 64}, {3, kernelThreads}} { // fewer and more warps than tiles
		clear(target)
		for block := range shape[0] {
			for thread := range shape[1] {
				m.thread(p, 3*regionSpan, count, block, shape[0], thread, shape[1])
			}
		}
		if !bytes.Equal(target, want) {
			t.Errorf("%d blocks of %d threads: the bytes differ", shape[0], shape[1])
		}
	}
}

// TestTheKernelAssembles where NVIDIA's assembler is at hand (PTXAS, or in PATH).
func TestTheKernelAssembles(t *testing.T) {
	assembler := os.Getenv("PTXAS")
	if assembler == "" {
		assembler = "ptxas"
	}
	if _, err := exec.LookPath(assembler); err != nil {
		t.Skip("no ptxas here: ", err)
	}
	for _, target := range []string{"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} {
		out, err := exec.Command(assembler, "-arch="+target, "-v", "copy.ptx", "-o", filepath.Join(t.TempDir(), "copy.cubin")).CombinedOutput()
		if strings.Contains(string(out), "is not defined for option 'gpu-name'") {
			t.Logf("this assembler does not know %s", target) // CUDA 13 has no sm_70
			continue
		}
		if err != nil || !strings.Contains(string(out), " 0 bytes spill stores") {
			t.Error(fmt.Errorf("%s: %w: %s", target, err, out))
		}
	}
}
